//! Releases as tags of a Git repository: a commit with the stack's directory, and a tag called like the release.
//!
//! Who we are to a server is what Git itself would say: an SSH agent, or the user's credential helpers. A tag that is
//! there is never moved.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use git2::{
    AutotagOption, Commit, Cred, CredentialType, Direction, Error, ErrorClass, ErrorCode, FetchOptions, FileMode,
    ObjectType, Oid, ProxyOptions, PushOptions, RemoteCallbacks, Repository, Signature, Tree,
};
use tempfile::TempDir;

use super::{PublishError, Published, Release};
use crate::core::files::FileTree;
use crate::core::source::SourceUrl;
use crate::io::source::answers::no_answer;
use crate::io::source::git::{SILENCE, name_of, set_timeouts};

/// How often a server may ask who we are: SSH asks for a name and a key.
const MAX_LOGINS: u8 = 3;
/// How often a release is put on a branch that others put theirs on at the same time.
const TRIES: u32 = 8;
/// How much is kept of what a server says to a push, in bytes.
const MAX_WORDS: usize = 1024;

/// Where releases go.
#[derive(Clone, Debug)]
pub struct Git {
    /// The repository.
    pub url: SourceUrl,
    /// The branch that gets the commits; without one each is an orphan that only its tag holds.
    pub branch: Option<String>,
    /// Directory of the stack; `stacks/<provider>/<name>` without it. [`Git::at_path`] sets it.
    pub path: Option<String>,
    /// File with authorities of https servers, beside the system's.
    pub ca_file: Option<PathBuf>,
}

/// What came of a try to publish.
enum Attempt {
    Published(Published),
    /// The branch has got another commit meanwhile, or somebody else has made the tag; what was said of ours.
    Overtaken(PublishError),
}

/// The repository that a commit is made in.
struct Workplace {
    repository: Repository,
    /// Of a server's: ours is thrown away.
    scratch: Option<TempDir>,
}

impl Git {
    fn fail(&self, action: &'static str) -> impl Fn(Error) -> PublishError {
        let (target, secret) = (self.url.redacted(), self.url.secret_str().to_owned());
        move |error| {
            let mut problem = error.message().replace(&secret, &target);
            if error.code() == ErrorCode::Timeout || problem.contains("Timed out") {
                problem = format!("{}: {problem}", no_answer(SILENCE));
            }
            if error.code() == ErrorCode::Certificate {
                problem.push_str(": --ca-file names a file with the authority that signed its certificate");
            }
            // libgit2 tells of an answer by its number alone.
            if error.class() == ErrorClass::Http && problem.ends_with(": 404") {
                problem.push_str(": there is no such repository, or who logs in may not see it");
            } else if error.class() == ErrorClass::Http && problem.ends_with(": 403") {
                problem.push_str(": who logs in may not do that");
            }
            PublishError::Remote { action, target: target.clone(), problem }
        }
    }

    fn refuse(&self, problem: String) -> PublishError {
        PublishError::Remote { action: "pushing to", target: self.url.redacted(), problem }
    }

    /// Puts the stack into another directory than the usual one.
    ///
    /// # Errors
    /// The path is none of a directory in a repository: what else is on the branch would go.
    pub fn at_path(self, path: &str) -> Result<Self, PublishError> {
        let place = path.strip_suffix('/').unwrap_or(path);
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.eq_ignore_ascii_case(".git");
        if !place.split('/').all(is_part) {
            let problem = "it is no path of a directory in a repository, such as stacks/docker/hello".to_owned();
            return Err(PublishError::Target { target: format!("--path {path}"), problem });
        }
        Ok(Self { path: Some(place.to_owned()), ..self })
    }

    fn place(&self, release: &Release) -> String {
        let usual = || format!("stacks/{}/{}", release.name.provider, release.name.stack);
        self.path.clone().unwrap_or_else(usual)
    }

    fn workplace(&self) -> Result<Workplace, PublishError> {
        let fail = self.fail("opening");
        if let Some(path) = self.url.local_path() {
            let repository = Repository::open(&path).map_err(fail)?;
            return Ok(Workplace { repository, scratch: None });
        }
        let io = |error| PublishError::Io { action: "making", path: std::env::temp_dir(), error };
        let scratch = tempfile::Builder::new().prefix("clusterstack-push-").tempdir().map_err(io)?;
        let repository = Repository::init_bare(scratch.path()).map_err(fail)?;
        Ok(Workplace { repository, scratch: Some(scratch) })
    }

    /// Publishes a release, blocking.
    pub fn publish(&self, release: &Release) -> Result<Published, PublishError> {
        set_timeouts();
        if let Some(file) = &self.ca_file {
            let unreadable = |error: Error| {
                let problem =
                    format!("--ca-file {} holds no certificate in PEM form: {}", file.display(), error.message());
                PublishError::Remote { action: "pushing to", target: self.url.redacted(), problem }
            };
            trust(file).map_err(unreadable)?;
        }
        let mut tries = 1;
        loop {
            match self.attempt(release)? {
                Attempt::Published(published) => return Ok(published),
                Attempt::Overtaken(_) if tries < TRIES => tries += 1,
                Attempt::Overtaken(error) => return Err(error),
            }
        }
    }

    fn attempt(&self, release: &Release) -> Result<Attempt, PublishError> {
        let files = release.stack()?;
        let tag = format!("refs/tags/{}", release.name.object_name());
        let branch = self.branch.as_ref().map(|branch| format!("refs/heads/{branch}"));
        let work = self.workplace()?;
        let repository = &work.repository;
        if work.scratch.is_some() {
            self.fetch(repository, [Some(&tag), branch.as_ref()].into_iter().flatten())?;
        }
        let fail = self.fail("writing to");
        let stack = tree(repository, &files).map_err(&fail)?;
        let place = self.place(release);
        if let Some(found) = commit_of(repository, &tag).map_err(&fail)? {
            let same =
                found.tree().and_then(|tree| tree.get_path(Path::new(&place))).is_ok_and(|entry| entry.id() == stack);
            let revision = found.id().to_string();
            if same {
                return Ok(Attempt::Published(Published::Unchanged { revision }));
            }
            let (release, target) = (release.name.object_name(), self.url.redacted());
            return Err(PublishError::Differs { release, target, found: format!("commit {revision}") });
        }
        let parent = match &branch {
            Some(branch) => commit_of(repository, branch).map_err(&fail)?,
            None => None,
        };
        if let Some(branch) = branch.as_ref().filter(|_| work.scratch.is_none())
            && !repository.is_bare()
            && repository.head().is_ok_and(|head| head.name().is_ok_and(|name| name == branch))
        {
            return Err(self.refuse(format!("{branch} is checked out there: name another --branch, or none")));
        }
        let commit = match &parent {
            // Its tag is still to come, or was refused.
            Some(parent) if is_of(parent, &place, stack, release) => parent.id(),
            _ => commit(repository, parent.as_ref(), &place, stack, release).map_err(&fail)?,
        };
        // The tag last, and after an answer: whoever polls takes it at once, and a branch may be refused.
        if let Some(branch) = &branch {
            let expected = parent.as_ref().map_or(Oid::ZERO_SHA1, Commit::id);
            let taken = repository.reference_matching(branch, commit, true, expected, "release").map_err(&fail);
            let taken = taken.and_then(|_| if work.scratch.is_some() { self.push(repository, branch) } else { Ok(()) });
            if let Err(error) = taken {
                let is_overtaken = self.tip(&work, branch)?.unwrap_or(Oid::ZERO_SHA1) != expected;
                return if is_overtaken { Ok(Attempt::Overtaken(error)) } else { Err(error) };
            }
        }
        // Not forced: a tag that somebody else made meanwhile stays.
        let tagged = repository.reference(&tag, commit, false, "release").map_err(&fail);
        let tagged = tagged.and_then(|_| if work.scratch.is_some() { self.push(repository, &tag) } else { Ok(()) });
        if let Err(error) = tagged {
            return if self.tip(&work, &tag)?.is_some() { Ok(Attempt::Overtaken(error)) } else { Err(error) };
        }
        Ok(Attempt::Published(Published::New { revision: commit.to_string() }))
    }

    /// Where a branch or a tag is by now.
    fn tip(&self, work: &Workplace, branch: &str) -> Result<Option<Oid>, PublishError> {
        let (fail, repository) = (self.fail("reading"), &work.repository);
        if work.scratch.is_none() {
            return Ok(commit_of(repository, branch).map_err(&fail)?.map(|commit| commit.id()));
        }
        let logins = Cell::new(0);
        let mut remote = repository.remote_anonymous(self.url.secret_str()).map_err(&fail)?;
        let callbacks = callbacks(repository, &logins);
        let connection = remote.connect_auth(Direction::Fetch, Some(callbacks), Some(proxy())).map_err(&fail)?;
        let heads = connection.list().map_err(&fail)?;
        Ok(heads.iter().find(|head| name_of(head).as_deref() == Some(branch)).map(git2::RemoteHead::oid))
    }

    /// Those of the references that the server has.
    fn fetch<'a>(&self, repository: &Repository, wanted: impl Iterator<Item = &'a String>) -> Result<(), PublishError> {
        let fail = self.fail("reading");
        let logins = Cell::new(0);
        let mut remote = repository.remote_anonymous(self.url.secret_str()).map_err(&fail)?;
        let there: Vec<String> = {
            let callbacks = callbacks(repository, &logins);
            let connection = remote.connect_auth(Direction::Fetch, Some(callbacks), Some(proxy())).map_err(&fail)?;
            connection.list().map_err(&fail)?.iter().filter_map(name_of).collect()
        };
        let specs: Vec<String> =
            wanted.filter(|name| there.contains(name)).map(|name| format!("{name}:{name}")).collect();
        if specs.is_empty() {
            return Ok(());
        }
        logins.set(0);
        let mut options = FetchOptions::new();
        options
            .remote_callbacks(callbacks(repository, &logins))
            .proxy_options(proxy())
            .download_tags(AutotagOption::None)
            .update_fetchhead(false);
        remote.fetch(&specs, Some(&mut options), None).map_err(&fail)
    }

    fn push(&self, repository: &Repository, name: &str) -> Result<(), PublishError> {
        let fail = self.fail("pushing to");
        let (logins, refused, said) = (Cell::new(0), RefCell::new(None), RefCell::new(Vec::new()));
        let mut remote = repository.remote_anonymous(self.url.secret_str()).map_err(&fail)?;
        let mut callbacks = callbacks(repository, &logins);
        callbacks.push_update_reference(|name, problem| {
            if let Some(problem) = problem {
                *refused.borrow_mut() = Some(format!("{name}: {problem}"));
            }
            Ok(())
        });
        callbacks.sideband_progress(|words| {
            let room = MAX_WORDS.saturating_sub(said.borrow().len());
            said.borrow_mut().extend_from_slice(&words[..words.len().min(room)]);
            true
        });
        let mut options = PushOptions::new();
        options.remote_callbacks(callbacks).proxy_options(proxy());
        let pushed = remote.push(&[format!("{name}:{name}")], Some(&mut options)).map_err(&fail);
        drop(options);
        pushed?;
        let said = String::from_utf8_lossy(&said.into_inner()).split_whitespace().collect::<Vec<_>>().join(" ");
        let said = if said.is_empty() { said } else { format!("; the server says: {said}") };
        refused.take().map_or(Ok(()), |problem| Err(self.refuse(format!("{problem}{said}"))))
    }
}

/// Makes the authorities in a file trusted, beside the system's.
fn trust(file: &Path) -> Result<(), Error> {
    #[allow(unsafe_code, reason = "libgit2's authorities are a global that git2 marks as unsafe")]
    // SAFETY: libgit2 adds to a store of OpenSSL, which has a lock of its own.
    let trusted = unsafe { git2::opts::set_ssl_cert_file(file) };
    trusted
}

fn proxy<'a>() -> ProxyOptions<'a> {
    let mut options = ProxyOptions::new();
    options.auto();
    options
}

fn callbacks<'a>(repository: &'a Repository, logins: &'a Cell<u8>) -> RemoteCallbacks<'a> {
    let mut callbacks = RemoteCallbacks::new();
    callbacks.credentials(move |url, user, allowed| {
        let refuse = |words: &str| Err(Error::new(ErrorCode::Auth, ErrorClass::Net, words));
        let is_password = allowed.contains(CredentialType::USER_PASS_PLAINTEXT);
        // A password that was refused once is refused again.
        if logins.get() >= if is_password { 1 } else { MAX_LOGINS } {
            return refuse("it does not accept these credentials");
        }
        logins.set(logins.get().saturating_add(1));
        if allowed.contains(CredentialType::USERNAME) {
            return Cred::username(user.unwrap_or("git"));
        }
        if allowed.contains(CredentialType::SSH_KEY) {
            return Cred::ssh_key_from_agent(user.unwrap_or("git"));
        }
        if is_password {
            return Cred::credential_helper(&repository.config()?, url, user).or_else(|_| {
                refuse(
                    "it does not accept this login, or asks for one: Git's credential helpers have none for this host",
                )
            });
        }
        Cred::default()
    });
    callbacks
}

fn commit_of<'r>(repository: &'r Repository, name: &str) -> Result<Option<Commit<'r>>, Error> {
    match repository.find_reference(name) {
        Ok(reference) => reference.peel_to_commit().map(Some),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A tree of the files.
fn tree(repository: &Repository, files: &FileTree) -> Result<Oid, Error> {
    let mut directories: BTreeMap<&str, FileTree> = BTreeMap::new();
    let mut builder = repository.treebuilder(None)?;
    for (path, content) in files {
        match path.split_once('/') {
            Some((directory, rest)) => {
                directories.entry(directory).or_default().insert(rest.to_owned(), content.clone());
            }
            None => _ = builder.insert(path, repository.blob(content)?, FileMode::Blob.into())?,
        }
    }
    for (name, files) in directories {
        builder.insert(name, tree(repository, &files)?, FileMode::Tree.into())?;
    }
    builder.write()
}

/// `base` with `stack` at the place that `parts` lead to. What is there and no directory stays.
fn grafted(repository: &Repository, base: Option<&Tree<'_>>, parts: &[&str], stack: Oid) -> Result<Oid, Error> {
    let Some((first, rest)) = parts.split_first() else { return Ok(stack) };
    let below = base.and_then(|base| base.get_name(first));
    if below.as_ref().is_some_and(|entry| entry.kind() != Some(ObjectType::Tree)) {
        return Err(Error::from_str(&format!(
            "{first} is no directory on the branch, and the stack would take its place: name another --path"
        )));
    }
    let below = below.map(|entry| repository.find_tree(entry.id())).transpose()?;
    let child = grafted(repository, below.as_ref(), rest, stack)?;
    let mut builder = repository.treebuilder(base)?;
    builder.insert(first, child, FileMode::Tree.into())?;
    builder.write()
}

/// What the commit of a release says.
fn message(release: &Release) -> String {
    format!("Release {}\n", release.name.object_name())
}

/// Whether a commit is that of a release.
fn is_of(commit: &Commit<'_>, place: &str, stack: Oid, release: &Release) -> bool {
    let tree = commit.tree().and_then(|tree| tree.get_path(Path::new(place)));
    tree.is_ok_and(|entry| entry.id() == stack) && commit.message().is_ok_and(|said| said == message(release))
}

fn commit(
    repository: &Repository,
    parent: Option<&Commit<'_>>,
    place: &str,
    stack: Oid,
    release: &Release,
) -> Result<Oid, Error> {
    let base = parent.map(Commit::tree).transpose()?;
    let parts: Vec<&str> = place.split('/').filter(|part| !part.is_empty()).collect();
    let tree = repository.find_tree(grafted(repository, base.as_ref(), &parts, stack)?)?;
    // Where Git does not know who the user is, as in a pipeline.
    let author =
        repository.signature().or_else(|_| Signature::now("clusterstack", "clusterstack@localhost.localdomain"))?;
    repository.commit(None, &author, &author, &message(release), &tree, &parent.into_iter().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_path_is_that_of_a_directory_in_a_repository() {
        let git = || Git {
            url: SourceUrl::parse("https://git.example.com/a.git").unwrap(),
            branch: None,
            path: None,
            ca_file: None,
        };
        for path in ["", "/", "//", "/abs", "a//b", "./a", "a/..", ".git/hooks", "a/.GIT"] {
            let error = git().at_path(path).unwrap_err().to_string();
            assert!(
                error.contains(&format!("--path {path}\"")) && error.contains("is no path of a directory"),
                "{error}"
            );
        }
        for (path, expected) in [("a", "a"), ("a/b/", "a/b"), ("a b/.github", "a b/.github")] {
            assert_eq!(git().at_path(path).unwrap().path.as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_stack_takes_the_place_of_nothing_but_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::init_bare(directory.path()).unwrap();
        let files = |paths: &[&str]| -> FileTree {
            paths.iter().map(|path| ((*path).to_owned(), Bytes::from_static(b"x"))).collect()
        };
        let of = |paths: &[&str]| repository.find_tree(tree(&repository, &files(paths)).unwrap()).unwrap();
        let stack = of(&["csctl.yaml"]).id();
        for (there, is_taken) in [
            (&["docs/keep"][..], true),
            (&["stacks/other/a", "stacks/docker/old"], true),
            (&["stacks"], false),
            (&["stacks/docker"], false),
        ] {
            let made = grafted(&repository, Some(&of(there)), &["stacks", "docker"], stack);
            assert_eq!(made.is_ok(), is_taken, "{there:?}");
            let Ok(made) = made else { continue };
            let made = repository.find_tree(made).unwrap();
            assert_eq!(made.get_path(Path::new("stacks/docker")).unwrap().id(), stack);
            assert!(made.get_path(Path::new(there[0])).is_ok());
        }
    }
}
