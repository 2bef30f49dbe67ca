//! The beginning of a disk's file: which format it is in, and whether opening it would open other files too.
//!
//! `qemu-img` follows what a disk names: backing files, data files, extents. A disk from outside could so bring files of the
//! operator's machine into an image. Such disks are refused by their own header, before any tool opens them. The layouts
//! are those of QEMU's `docs/interop/qcow2.rst`, of `VMware`'s "Virtual Disk Format 5.0" and of MS-VHDX.

use super::pipeline::Format;

/// Bytes of a file that [`judge`] wants to see, if there are so many.
pub const HEAD: usize = 1 << 20;

const QCOW2: &[u8] = b"QFI\xfb";
const VMDK: &[u8] = b"KDMV";
const VMDK_TEXT: &[u8] = b"# Disk DescriptorFile";
const VHDX: &[u8] = b"vhdxfile";
/// Incompatible feature of qcow2: the data lie in another file.
const EXTERNAL_DATA: u64 = 1 << 2;
/// Header extension of qcow2 with the name of that file.
const DATA_FILE_NAME: u32 = 0x4441_5441;
/// Bytes of a sector of VMDK.
const SECTOR: u64 = 512;
/// Kinds of VMDK whose data lie in the file itself.
const WHOLE_VMDK: &[&str] = &["monolithicSparse", "streamOptimized"];

/// Format of a file by its first bytes; what is none of the others is raw.
pub fn by_magic(head: &[u8]) -> Format {
    if head.starts_with(QCOW2) {
        Format::Qcow2
    } else if head.starts_with(VMDK) || head.starts_with(VMDK_TEXT) {
        Format::Vmdk
    } else if head.starts_with(VHDX) {
        Format::Vhdx
    } else {
        Format::Raw
    }
}

/// Whether a file that begins with `head` may be opened as a disk of `format`, which holds at most `limit` bytes.
///
/// # Errors
/// It is of another format, names other files, is encrypted, or says that it is larger; in words for people.
pub fn judge(format: Format, head: &[u8], limit: u64) -> Result<(), String> {
    let found = by_magic(head);
    // Raw is not looked into: its bytes are the guest's.
    if format != Format::Raw && found != format {
        return Err(format!("it is {} by its first bytes, not {}", found.name(), format.name()));
    }
    match format {
        // A VHDX with a parent is refused by qemu-img itself.
        Format::Raw | Format::Vhdx => Ok(()),
        Format::Qcow2 => qcow2(head, limit),
        Format::Vmdk => vmdk(head, limit),
    }
}

fn be32(head: &[u8], at: usize) -> Result<u32, String> {
    let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_be_bytes).ok_or_else(|| "its header is cut off".to_owned())
}

fn be64(head: &[u8], at: usize) -> Result<u64, String> {
    Ok(u64::from(be32(head, at)?) << 32 | u64::from(be32(head, at + 4)?))
}

fn le64(head: &[u8], at: usize) -> Result<u64, String> {
    be64(head, at).map(u64::swap_bytes)
}

fn small(size: u64, limit: u64) -> Result<(), String> {
    if size > limit {
        return Err(format!("it is a disk of {size} bytes, and build.limits.disk allows {limit}"));
    }
    Ok(())
}

fn qcow2(head: &[u8], limit: u64) -> Result<(), String> {
    let version = be32(head, 4)?;
    if !matches!(version, 2 | 3) {
        return Err(format!("it is qcow2 of version {version}, which is not known"));
    }
    if be64(head, 8)? != 0 || be32(head, 16)? != 0 {
        return Err("it has a backing file: only a disk that is whole by itself is taken (qemu-img convert makes one)"
            .to_owned());
    }
    small(be64(head, 24)?, limit)?;
    if be32(head, 32)? != 0 {
        return Err("it is encrypted".to_owned());
    }
    let (features, length) = if version == 3 { (be64(head, 72)?, be32(head, 100)? as usize) } else { (0, 72) };
    if features & EXTERNAL_DATA != 0 {
        return Err("its data lie in another file".to_owned());
    }
    let mut at = length;
    // Each extension is a type, a length and so many bytes, to the next multiple of eight; type 0 ends them.
    while let Ok(kind) = be32(head, at) {
        let length = be32(head, at + 4)? as usize;
        match kind {
            0 => break,
            DATA_FILE_NAME => return Err("it names another file for its data".to_owned()),
            _ => at = at.saturating_add(8).saturating_add(length.div_ceil(8).saturating_mul(8)),
        }
    }
    Ok(())
}

fn vmdk(head: &[u8], limit: u64) -> Result<(), String> {
    if head.starts_with(VMDK_TEXT) {
        return Err("it is only a description, whose data lie in other files".to_owned());
    }
    let capacity = le64(head, 12)?;
    if capacity == 0 {
        return Err("it has no data of its own".to_owned());
    }
    small(capacity.saturating_mul(SECTOR), limit)?;
    let (at, size) = (le64(head, 28)?.saturating_mul(SECTOR), le64(head, 36)?.saturating_mul(SECTOR));
    if at == 0 {
        return Ok(());
    }
    let range = usize::try_from(at).ok().zip(usize::try_from(at.saturating_add(size)).ok());
    let bytes =
        range.and_then(|(from, to)| head.get(from..to)).ok_or("its description does not lie at its beginning")?;
    let text = String::from_utf8_lossy(bytes);
    let lines = || text.lines().map(|line| line.trim_matches(['\0', ' ', '\t', '\r'])).filter(|line| !line.is_empty());
    let value = |key: &str| {
        let found = lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            name.trim().eq_ignore_ascii_case(key).then(|| value.trim().trim_matches('"').to_owned())
        });
        found.unwrap_or_default()
    };
    let kind = value("createType");
    if !WHOLE_VMDK.contains(&kind.as_str()) {
        return Err(format!("it is a VMDK of type {kind:?}: only {} are taken", WHOLE_VMDK.join(" and ")));
    }
    let parent = value("parentCID");
    if text.to_ascii_lowercase().contains("parentfilenamehint") || !matches!(parent.as_str(), "" | "ffffffff") {
        return Err("it has a parent: only a disk that is whole by itself is taken".to_owned());
    }
    let extents = lines().filter(|line| ["RW ", "RDONLY ", "NOACCESS "].iter().any(|access| line.starts_with(access)));
    if extents.clone().count() > 1 || extents.clone().any(|line| line.split_whitespace().nth(2) != Some("SPARSE")) {
        return Err("its data lie in other files".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
