use super::*;

const LIMIT: u64 = 1 << 30;

fn qcow2_head(version: u32) -> Vec<u8> {
    let mut head = vec![0; 1024];
    head[..4].copy_from_slice(QCOW2);
    head[4..8].copy_from_slice(&version.to_be_bytes());
    head[24..32].copy_from_slice(&(1_u64 << 20).to_be_bytes());
    if version == 3 {
        head[100..104].copy_from_slice(&104_u32.to_be_bytes());
    }
    head
}

fn set(mut head: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    head[at..at + bytes.len()].copy_from_slice(bytes);
    head
}

#[test]
fn a_qcow2_is_whole_by_itself() {
    assert_eq!(judge(Format::Qcow2, &qcow2_head(2), LIMIT), Ok(()));
    assert_eq!(judge(Format::Qcow2, &qcow2_head(3), LIMIT), Ok(()));
    let extension = |kind: u32, length: u32| [kind.to_be_bytes(), length.to_be_bytes()].concat();
    let harmless = set(qcow2_head(3), 104, &extension(0x6803_f857, 5));
    assert_eq!(judge(Format::Qcow2, &harmless, LIMIT), Ok(()));
    for (head, problem) in [
        (set(qcow2_head(3), 15, &[200]), "backing file"),
        (set(qcow2_head(2), 19, &[9]), "backing file"),
        (set(qcow2_head(3), 79, &[4]), "another file"),
        (set(qcow2_head(3), 104, &extension(DATA_FILE_NAME, 8)), "another file"),
        (set(harmless.clone(), 120, &extension(DATA_FILE_NAME, 8)), "another file"),
        (set(qcow2_head(3), 35, &[2]), "encrypted"),
        (set(qcow2_head(3), 24, &[0x7f]), "allows 1073741824"),
        (set(qcow2_head(3), 7, &[9]), "version 9"),
        (qcow2_head(3)[..40].to_vec(), "cut off"),
        (b"plain".to_vec(), "raw by its first bytes"),
    ] {
        let error = judge(Format::Qcow2, &head, LIMIT).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
    // The guest's bytes of a raw disk are nobody's header.
    assert_eq!(judge(Format::Raw, &set(qcow2_head(3), 15, &[200]), LIMIT), Ok(()));
}

fn vmdk_head(descriptor: &str) -> Vec<u8> {
    let mut head = vec![0; 4096];
    head[..4].copy_from_slice(VMDK);
    head[12..20].copy_from_slice(&2048_u64.to_le_bytes());
    head[28..36].copy_from_slice(&1_u64.to_le_bytes());
    head[36..44].copy_from_slice(&4_u64.to_le_bytes());
    head[512..512 + descriptor.len()].copy_from_slice(descriptor.as_bytes());
    head
}

#[test]
fn a_vmdk_is_whole_by_itself() {
    let good = "# Disk DescriptorFile\nversion=1\nparentCID=ffffffff\ncreateType=\"monolithicSparse\"\nRW 2048 SPARSE \"a.vmdk\"\n";
    assert_eq!(judge(Format::Vmdk, &vmdk_head(good), LIMIT), Ok(()));
    for (descriptor, problem) in [
        (good.replace("monolithicSparse", "monolithicFlat"), "of type \"monolithicFlat\""),
        (good.replace("SPARSE", "FLAT"), "other files"),
        (format!("{good}RW 2048 SPARSE \"b.vmdk\"\n"), "other files"),
        (format!("{good}parentFileNameHint=\"/etc/passwd\"\n"), "parent"),
        (good.replace("ffffffff", "12345678"), "parent"),
    ] {
        let error = judge(Format::Vmdk, &vmdk_head(&descriptor), LIMIT).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
    let empty = set(vmdk_head(good), 12, &[0; 8]);
    assert!(judge(Format::Vmdk, &empty, LIMIT).unwrap_err().contains("no data"));
    assert!(judge(Format::Vmdk, VMDK_TEXT, LIMIT).unwrap_err().contains("description"));
    assert!(judge(Format::Vmdk, &set(vmdk_head(good), 28, &[0xff; 8]), LIMIT).is_err());
}
