//! All tags of the real repository: which give a release, which are refused, and why.

use std::fmt::Write;

use clusterstack::core::bundle::{AddonCharts, Bundle};
use clusterstack::core::name::ReleaseName;
use clusterstack::io::source::Source;
use tokio_util::sync::CancellationToken;

use super::{git, repository, shared};

fn describe(bundle: &Bundle, path: &str) -> String {
    let addon = match &bundle.addon {
        None => "none".to_owned(),
        Some(AddonCharts::Single(_)) => "one chart".to_owned(),
        Some(AddonCharts::Stages { charts, .. }) => charts.keys().cloned().collect::<Vec<_>>().join("+"),
    };
    let version = bundle.addon_version.as_deref().unwrap_or("-");
    let images = bundle.node_images.images.len();
    format!(
        "{path} class {} k8s {} addon {addon} {version} images {images}",
        bundle.class_version, bundle.kubernetes_version
    )
}

#[tokio::test]
async fn every_tag_of_the_real_repository_is_a_release_or_says_why_not() {
    let Some(shared) = shared() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = repository::real(&shared, directory.path());
    let git = git(directory.path(), &[directory.path().to_str().unwrap()]);
    let source = git.source(&format!("file://{}", path.display()), None, None).unwrap();
    let cancel = CancellationToken::new();
    let listing = source.list(&cancel).await.unwrap();
    assert_eq!(listing.tags.len(), 40);
    let mut table = String::new();
    for tag in &listing.tags {
        let outcome = match tag.name.parse::<ReleaseName>() {
            Err(_) => "no release".to_owned(),
            Ok(name) => match source.fetch(tag, &name, &cancel).await {
                Err(error) => format!("REFUSED {error}"),
                Ok(fetched) => match Bundle::from_files(&name, &fetched.files, &fetched.component_ids) {
                    Err(error) => format!("REFUSED {error}"),
                    Ok(bundle) => describe(&bundle, &fetched.path),
                },
            },
        };
        writeln!(table, "{}: {outcome}", tag.name).unwrap();
    }
    insta::assert_snapshot!(table, @"");
}
