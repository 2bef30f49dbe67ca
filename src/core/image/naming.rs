//! What an image may be called at its destination: each kind of destination has names that it can't take.

/// How the record beside a file ends.
pub const RECORD: &str = ".clusterstack.json";
/// Between the tag of an image and the id of a user.
pub const USED_BY: &str = ".user.";
/// How the tag that protects an image ends.
pub const PROTECTED: &str = ".protected";
/// How the name of an image ends that is being removed from an image service.
pub const REMOVING: &str = ".removing";
/// Bytes of a file's name, so that there is room for what is added.
const FILE: usize = 128;
/// Bytes of a tag, so that there is room for the id of a user.
const TAG: usize = 86;
/// Bytes of a name at an image service.
const TITLE: usize = 160;

/// That it can be a file's name, which is no record's: in a directory, at a server that takes files, in S3.
///
/// # Errors
/// What of it can't be.
pub fn as_file(name: &str) -> Result<(), String> {
    no_longer(name, FILE)?;
    if let Some(first) = name.chars().next().filter(|first| matches!(first, '.' | '-')) {
        return Err(format!("it begins with {first:?}"));
    }
    plain(name, "._+-", "letters, digits, dots, dashes, underscores and plus signs")?;
    ends_not_in(name, RECORD, "the records beside images end so")
}

/// That it can be a tag of a registry.
///
/// # Errors
/// What of it can't be.
pub fn as_tag(name: &str) -> Result<(), String> {
    no_longer(name, TAG)?;
    if let Some(first) = name.chars().next().filter(|first| matches!(first, '.' | '-')) {
        return Err(format!("it begins with {first:?}"));
    }
    plain(name, "._-", "letters, digits, dots, dashes and underscores")?;
    if name.contains(USED_BY) {
        return Err(format!("it holds {USED_BY:?}, as the tags beside images do"));
    }
    ends_not_in(name, PROTECTED, "the tags that protect images end so")
}

/// That it can be the name of an image at an image service (Glance).
///
/// # Errors
/// What of it can't be.
pub fn as_title(name: &str) -> Result<(), String> {
    no_longer(name, TITLE)?;
    if name.starts_with('.') {
        return Err("it begins with '.'".to_owned());
    }
    // A name that begins so asks for several.
    if name.starts_with("in:") {
        return Err("it begins with \"in:\"".to_owned());
    }
    if let Some(found) = name.chars().find(|c| c.is_control()) {
        return Err(format!("it holds {found:?}, which nobody sees"));
    }
    ends_not_in(name, REMOVING, "images that are being removed end so")
}

/// Which kinds of destinations can't take a name, with what of it they can't.
pub fn refusals(name: &str) -> Vec<(&'static str, String)> {
    let kinds = [("directory, http and s3", as_file(name)), ("oci", as_tag(name)), ("glance", as_title(name))];
    kinds.into_iter().filter_map(|(kind, taken)| Some((kind, taken.err()?))).collect()
}

/// How many kinds there are in [`refusals`] at most.
pub const KINDS: usize = 3;

fn no_longer(name: &str, most: usize) -> Result<(), String> {
    match name.len() {
        0 => Err("it is empty".to_owned()),
        found if found > most => Err(format!("it has {found} bytes, and {most} are the most")),
        _ => Ok(()),
    }
}

fn plain(name: &str, more: &str, all: &str) -> Result<(), String> {
    match name.chars().find(|c| !c.is_ascii_alphanumeric() && !more.contains(*c)) {
        Some(found) => Err(format!("it holds {found:?}: use {all}")),
        None => Ok(()),
    }
}

fn ends_not_in(name: &str, end: &str, why: &str) -> Result<(), String> {
    if name.ends_with(end) { Err(format!("it ends in {end:?}: {why}")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_or_it_is_said_what_of_it_is_not() {
        let long = "n".repeat(161);
        for (name, file, tag, title) in [
            ("ubuntu-2404-kube-v1.34.0", "", "", ""),
            ("a+b", "", "it holds '+'", ""),
            ("Ubuntu 24.04", "it holds ' '", "it holds ' '", ""),
            ("a/b", "it holds '/'", "it holds '/'", ""),
            ("../x", "it begins with '.'", "it begins with '.'", "it begins with '.'"),
            (".hidden", "it begins with '.'", "it begins with '.'", "it begins with '.'"),
            ("-x", "it begins with '-'", "it begins with '-'", ""),
            ("in:x", "it holds ':'", "it holds ':'", "it begins with \"in:\""),
            ("a\nb", "it holds '\\n'", "it holds '\\n'", "it holds '\\n'"),
            ("x.clusterstack.json", "it ends in \".clusterstack.json\"", "", ""),
            ("x.user.y", "", "it holds \".user.\"", ""),
            ("x.protected", "", "it ends in \".protected\"", ""),
            ("x.removing", "", "", "it ends in \".removing\""),
            ("", "it is empty", "it is empty", "it is empty"),
            (&long, "it has 161 bytes, and 128", "161 bytes, and 86", "161 bytes, and 160"),
            (&long[..86], "", "", ""),
            (&long[..87], "", "87 bytes, and 86", ""),
        ] {
            for (taken, expected) in [(as_file(name), file), (as_tag(name), tag), (as_title(name), title)] {
                let said = taken.err().unwrap_or_default();
                assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{name:?}: {said}");
            }
            let refused = [file, tag, title].iter().filter(|said| !said.is_empty()).count();
            assert_eq!(refusals(name).len(), refused, "{name:?}");
        }
    }
}
