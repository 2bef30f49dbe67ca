//! The book: links lead somewhere, every page is in the table of contents, each story is played by a test, each reason that
//! may mean work for somebody is in docs/operations.md, and each metric in docs/monitoring.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// Reasons that ask nothing of anybody: what is well, or under way, or was done. All others are in docs/operations.md.
const NO_WORK: [&str; 22] = [
    "BuildStepDone",
    "BuildStepStarted",
    "CertificateRenewed",
    "Deleting",
    "Fetching",
    "HelmTestSucceeded",
    "ImageMarked",
    "ImageReady",
    "ImageRemoved",
    "ImageUnused",
    "Progressing",
    "Pruned",
    "Ready",
    "ReleaseCollected",
    "ReleaseCreated",
    "Replaced",
    "SeedCreated",
    "StageDone",
    "StageSkipped",
    "Succeeded",
    "Unknown",
    "Verified",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below a directory whose name has this ending.
fn files_below(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files_below(&root().join("docs"), "md");
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    pages
}

/// A page without its blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// What the links of a page name; a link's text may go over several lines.
fn links(text: &str) -> Vec<String> {
    let code = Regex::new("`[^`\n]*`").unwrap();
    let link = Regex::new(r"\]\(([^()\s]+)\)").unwrap();
    let text = prose(text);
    let text = code.replace_all(&text, "");
    link.captures_iter(&text).map(|found| found[1].to_owned()).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").unwrap();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for line in prose(text).lines().filter(|line| line.starts_with('#')) {
        let Some((_, heading)) = line.split_once("# ") else { continue };
        let heading = link.replace_all(heading.trim(), "$1").to_lowercase();
        let is_kept = |sign: &char| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_');
        let anchor = heading.chars().filter(is_kept).collect::<String>().replace(' ', "-");
        let before = seen.entry(anchor.clone()).or_default();
        found.insert(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
        *before += 1;
    }
    found
}

/// What is wrong with a link of a page.
fn fault(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
    if !target.exists() {
        return Some("there is no such file".to_owned());
    }
    let is_page = target.extension().is_some_and(|extension| extension == "md");
    let is_there = anchor.is_empty() || !is_page || anchors(&read(&target)).contains(anchor);
    (!is_there).then(|| "there is no such heading".to_owned())
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    let mut count = 0;
    for page in pages() {
        for link in links(&read(&page)) {
            count += 1;
            faults.extend(fault(&page, &link).map(|why| format!("{}: {link}: {why}", page.display())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 200, "{count}");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let contents = root().join("docs/README.md");
    let dir = contents.parent().unwrap();
    let linked: BTreeSet<PathBuf> =
        links(&read(&contents)).iter().filter_map(|link| dir.join(link).canonicalize().ok()).collect();
    for page in files_below(dir, "md") {
        let page = page.canonicalize().unwrap();
        let is_there = linked.contains(&page) || page == contents.canonicalize().unwrap();
        assert!(is_there, "docs/README.md does not link {}", page.display());
    }
}

#[test]
fn each_story_is_played_by_a_test() {
    let mut tests = BTreeSet::new();
    crate::threats::tests_below(&root().join("e2e"), &mut tests);
    let name = Regex::new("`([a-z0-9]+(?:_[a-z0-9]+){3,})`").unwrap();
    let stories = files_below(&root().join("docs/stories"), "md");
    assert_eq!(stories.len(), 4);
    for story in stories {
        let text = read(&story);
        let (_, played) = text.split_once("\n## Played by\n").unwrap_or_else(|| panic!("{}", story.display()));
        let named: Vec<&str> = name.captures_iter(played).map(|found| found.get(1).unwrap().as_str()).collect();
        assert!(played.trim_start().starts_with('`') && !named.is_empty(), "{} names no test", story.display());
        for name in named {
            assert!(tests.contains(name), "{}: there is no test {name}", story.display());
        }
    }
}

#[test]
fn each_reason_that_may_mean_work_is_in_operations() {
    let reference = read(&root().join("docs/api.md"));
    let operations = read(&root().join("docs/operations.md"));
    let (_, rows) = reference.split_once("\n## Reasons\n").unwrap();
    let rows = rows.lines().filter_map(|line| line.strip_prefix("| `"));
    let reasons: BTreeSet<&str> = rows.filter_map(|row| Some(row.split_once('`')?.0)).collect();
    assert!(reasons.len() > 80, "{reasons:?}");
    for reason in &reasons {
        let is_there = NO_WORK.contains(reason) || operations.contains(&format!("`{reason}`"));
        assert!(is_there, "docs/operations.md does not say what to do about {reason}");
    }
    for reason in NO_WORK {
        assert!(reasons.contains(reason), "there is no reason {reason}");
    }
}

#[test]
fn each_metric_is_in_monitoring() {
    let registered = Regex::new(r#"registry\.register\(\s*"([a-z_]+)""#).unwrap();
    let page = read(&root().join("docs/monitoring.md"));
    let mut count = 0;
    for file in files_below(&root().join("src"), "rs") {
        let text = read(&file);
        for found in registered.captures_iter(&text) {
            count += 1;
            let is_there =
                ["", "_total", "_info"].iter().any(|end| page.contains(&format!("`clusterstack_{}{end}`", &found[1])));
            assert!(is_there, "docs/monitoring.md does not name clusterstack_{}", &found[1]);
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn anchors_are_those_of_github() {
    let page =
        "# A & B\n\n```sh\n# no heading\n```\n\n## When `x` is *in use*?\n## What's [this](a.md)\n## Same\n## Same\n";
    let expected = ["a--b", "same", "same-1", "whats-this", "when-x-is-in-use"].map(str::to_owned);
    assert_eq!(anchors(page), BTreeSet::from(expected));
    assert_eq!(links("[a\nb](c.md#d) `[no](x)` ![i](i.png)\n```\n[no](y)\n```\n"), ["c.md#d", "i.png"]);
}
