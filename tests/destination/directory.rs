//! A directory.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use clusterstack::api::image_destination::{Destination as Spec, DirectoryDestination};
use clusterstack::io::image::destination::{Destination, DestinationError, Published, Reach, open};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::conformance::{World, conforms};
use super::wire::Wire;

struct Directory {
    root: TempDir,
}

impl Directory {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("images")).unwrap();
        Self { root }
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("images")
    }

    fn record(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}.clusterstack.json"))
    }

    fn at(&self, path: &str) -> Result<Arc<dyn Destination>, DestinationError> {
        let directory = DirectoryDestination { path: path.to_owned() };
        let spec = Spec { directory: Some(directory), ..Spec::default() };
        open(&spec, &Reach { directories: vec![self.root.path().to_owned()], ..Reach::default() })
    }
}

#[async_trait]
impl World for Directory {
    fn open(&self) -> Arc<dyn Destination> {
        self.at(self.path().to_str().unwrap()).unwrap()
    }

    fn open_wrong(&self) -> Option<(Arc<dyn Destination>, &'static str)> {
        None
    }

    fn wire(&self) -> Option<&Wire> {
        None
    }

    async fn content(&self, image: &Published) -> Vec<u8> {
        std::fs::read(&image.location).unwrap()
    }

    async fn bring(&self, name: &str) {
        std::fs::write(self.path().join(name), "theirs").unwrap();
    }

    async fn has_brought(&self, name: &str) -> bool {
        std::fs::read(self.path().join(name)).unwrap() == b"theirs" && !self.record(name).exists()
    }

    async fn protect(&self, name: &str) {
        let text = std::fs::read_to_string(self.record(name)).unwrap();
        std::fs::write(self.record(name), text.replacen('{', "{\"protected\": true,", 1)).unwrap();
    }

    async fn litter(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with('.') && name != ".clusterstack.lock").collect()
    }

    fn resumes(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_conforms() {
    conforms(&Directory::new()).await;
}

#[tokio::test]
async fn only_directories_below_a_root_are_used_and_no_links() {
    let world = Directory::new();
    let root = world.root.path().to_str().unwrap();
    for path in ["/etc", "images", "", &format!("{root}/../x"), &format!("{root}x")] {
        let error = world.at(path).map(drop).unwrap_err();
        assert!(matches!(&error, DestinationError::Refused { .. }), "{path}: {error}");
        assert!(error.to_string().contains("--allow-image-directory"), "{error}");
    }
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), world.root.path().join("link")).unwrap();
    for name in ["link", "link/below", "missing"] {
        let to = world.at(&format!("{root}/{name}")).unwrap();
        let error = to.find("x", &CancellationToken::new()).await.unwrap_err();
        assert!(matches!(&error, DestinationError::Refused { .. }), "{name}: {error}");
    }
    // A name that is a link is somebody else's.
    std::os::unix::fs::symlink("/etc/passwd", world.path().join("linked")).unwrap();
    let error = world.open().find("linked", &CancellationToken::new()).await.unwrap_err();
    assert!(matches!(&error, DestinationError::Conflict { .. }), "{error}");
}
