//! Bounds what a tar says of its entries beside their contents: long names and PAX records, which a reader takes into memory whole and
//! which no file's size tells of.

use std::io::{self, Read};

use tar::{EntryType, Header, PaxExtensions};

/// Bytes of a block.
const BLOCK: usize = 512;
/// Bytes that a long name or the PAX records of an entry may take: a path of 4 KiB and a few dozen records.
const MOST: u64 = 64 << 10;

/// Follows the bytes of a tar from head to head.
pub(super) struct Heads {
    head: Vec<u8>,
    /// Bytes until the next head.
    skip: u64,
    /// PAX records that are being read, and how many bytes of them are missing.
    records: Option<(Vec<u8>, usize)>,
    /// What they say of the size of the next file.
    size: Option<u64>,
}

impl Heads {
    pub(super) fn new() -> Self {
        Self { head: Vec::with_capacity(BLOCK), skip: 0, records: None, size: None }
    }

    /// Looks at the next bytes.
    ///
    /// # Errors
    /// What describes an entry is too large.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if let Some((records, missing)) = &mut self.records {
                let (now, rest) = bytes.split_at(bytes.len().min(*missing));
                records.extend_from_slice(now);
                *missing -= now.len();
                bytes = rest;
                if *missing == 0 {
                    self.size = size_of(records);
                    self.records = None;
                }
                continue;
            }
            if self.skip > 0 {
                let now = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
                self.skip -= now as u64;
                bytes = &bytes[now..];
                continue;
            }
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.head.len()));
            self.head.extend_from_slice(now);
            bytes = rest;
            if self.head.len() == BLOCK {
                self.look()?;
                self.head.clear();
            }
        }
        Ok(())
    }

    /// A head that is whole. One that can't be read is the reader's to refuse.
    fn look(&mut self) -> io::Result<()> {
        let head = Header::from_byte_slice(&self.head);
        let told = head.entry_size().unwrap_or_default();
        let kind = head.entry_type();
        let describes = matches!(
            kind,
            EntryType::XHeader | EntryType::XGlobalHeader | EntryType::GNULongName | EntryType::GNULongLink
        );
        let size = if describes { told } else { self.size.take().unwrap_or(told) };
        let padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        if describes && size > MOST {
            let message = format!("a long name, or what PAX says of an entry, takes {size} bytes and may take {MOST}");
            return Err(io::Error::other(message));
        }
        if kind == EntryType::XHeader && size > 0 {
            self.records = Some((Vec::new(), usize::try_from(size).unwrap_or_default()));
            self.skip = padding;
        } else {
            self.skip = size.saturating_add(padding);
        }
        Ok(())
    }
}

fn size_of(records: &[u8]) -> Option<u64> {
    let sizes = PaxExtensions::new(records).filter_map(Result::ok).filter(|record| record.key_bytes() == b"size");
    sizes.filter_map(|record| record.value().ok()?.parse().ok()).last()
}

/// A reader of a tar whose heads are looked at on the way.
pub(super) struct Looked<R> {
    inner: R,
    heads: Heads,
}

impl<R> Looked<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, heads: Heads::new() }
    }

    pub(super) fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: Read> Read for Looked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.heads.feed(&buffer[..read])?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use tar::Builder;

    use super::*;

    fn tar(extension: (EntryType, &[u8]), size: usize) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        let mut add = |kind: EntryType, content: &[u8], told: u64| {
            let mut head = Header::new_ustar();
            head.set_entry_type(kind);
            head.set_size(told);
            head.set_path("x").unwrap();
            head.set_cksum();
            let padding = vec![0; (BLOCK - content.len() % BLOCK) % BLOCK];
            let block = [head.as_bytes().as_slice(), content, &padding].concat();
            builder.get_mut().extend_from_slice(&block);
        };
        add(EntryType::Regular, &[1; 700], 700);
        add(extension.0, extension.1, extension.1.len() as u64);
        // A size that PAX tells is the one that counts.
        let content = vec![b'L'; size];
        let by_pax = extension.1.windows(5).any(|part| part == b"size=");
        add(EntryType::Regular, &content, if by_pax { 0 } else { size as u64 });
        add(EntryType::GNULongName, &[b'a'; 100], 100);
        builder.into_inner().unwrap()
    }

    #[test]
    fn long_names_and_records_are_bounded_however_they_come() {
        let large = vec![b'a'; 70_000];
        let record = |key: &str, value: &str| {
            let rest = format!(" {key}={value}\n");
            let length =
                (rest.len()..rest.len() + 10).find(|length| length.to_string().len() + rest.len() == *length).unwrap();
            format!("{length}{rest}")
        };
        let size = record("size", "100000");
        let comment = record("comment", &"c".repeat(70_000));
        for (case, extension, size, refused) in [
            ("a long name", (EntryType::GNULongName, &b"a/b"[..]), 10, false),
            ("a name that is too long", (EntryType::GNULongName, &large[..]), 10, true),
            ("a link that is too long", (EntryType::GNULongLink, &large[..]), 10, true),
            ("records", (EntryType::XHeader, record("comment", "c").as_bytes()), 10, false),
            ("a comment that is too long", (EntryType::XHeader, comment.as_bytes()), 10, true),
            ("global records that are too long", (EntryType::XGlobalHeader, comment.as_bytes()), 10, true),
            ("a size that PAX tells", (EntryType::XHeader, size.as_bytes()), 100_000, false),
        ] {
            let tar = tar(extension, size);
            for piece in [1, 511, 512, 4096, tar.len()] {
                let mut heads = Heads::new();
                let found = tar.chunks(piece).try_for_each(|bytes| heads.feed(bytes));
                assert_eq!(found.is_err(), refused, "{case}, by {piece}: {found:?}");
            }
        }
    }
}
