//! What stands before each entry of a pack (gitformat-pack(5)).

use std::io::Read as _;

use git2::ObjectType;

use super::Id;

/// How an entry holds its object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole(ObjectType),
    /// As the change of the entry that begins so many bytes before it.
    ChangeBefore(u64),
    ChangeOf(Id),
}

/// What stands before an entry's content.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) form: Form,
    /// Of the content, or of the change, unpacked.
    pub(super) size: u64,
    pub(super) length: u64,
}

impl Head {
    /// What `bytes` begin with, if they are enough for it.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut next = || {
            let mut byte = [0];
            rest.read_exact(&mut byte).ok()?;
            Some(byte[0])
        };
        let first = next()?;
        let (mut size, mut shift, mut last) = (u64::from(first & 0x0f), 4, first);
        while last & 0x80 != 0 {
            // No size needs more.
            if shift > 53 {
                return None;
            }
            last = next()?;
            size |= u64::from(last & 0x7f) << shift;
            shift += 7;
        }
        let form = match (first >> 4) & 7 {
            1 => Form::Whole(ObjectType::Commit),
            2 => Form::Whole(ObjectType::Tree),
            3 => Form::Whole(ObjectType::Blob),
            4 => Form::Whole(ObjectType::Tag),
            6 => {
                let mut last = next()?;
                let mut distance = u64::from(last & 0x7f);
                while last & 0x80 != 0 {
                    last = next()?;
                    distance = (distance.checked_add(1)?.checked_mul(128)?) | u64::from(last & 0x7f);
                }
                Form::ChangeBefore(distance)
            }
            7 => {
                let mut id = [0; 20];
                for byte in &mut id {
                    *byte = next()?;
                }
                Form::ChangeOf(id)
            }
            _ => return None,
        };
        Some(Self { form, size, length: (bytes.len() - rest.len()) as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_git_writes_it_or_refused() {
        let whole = |kind, size, length| Some(Head { form: Form::Whole(kind), size, length });
        let change = |distance, length| Some(Head { form: Form::ChangeBefore(distance), size: 5, length });
        let id: Vec<u8> = [0x75].into_iter().chain(1..=20).collect();
        let mut name = [0; 20];
        name.copy_from_slice(&id[1..]);
        for (bytes, expected) in [
            (&[0x15, 9][..], whole(ObjectType::Commit, 5, 1)),
            (&[0x25], whole(ObjectType::Tree, 5, 1)),
            (&[0xb5, 1], whole(ObjectType::Blob, 21, 2)),
            (&[0xc0, 0x80, 1], whole(ObjectType::Tag, 1 << 11, 3)),
            (&[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], whole(ObjectType::Blob, (1 << 60) - 1, 9)),
            (&[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0], None),
            (&[0xb5], None),
            (&[], None),
            (&[0x05], None),
            (&[0x55], None),
            (&[0x65, 0x7f], change(127, 2)),
            (&[0x65, 0x80, 0], change(128, 3)),
            (&[0x65, 0x80], None),
            (&[0x65, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0], None),
            (&id, Some(Head { form: Form::ChangeOf(name), size: 5, length: 21 })),
            (&id[..20], None),
        ] {
            assert_eq!(Head::parse(bytes), expected, "{bytes:x?}");
        }
    }
}
