use std::fs::OpenOptions;
use std::io::Write;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use tower::ServiceExt;

use super::*;

const INPUTS: &str = "sha256:0a1b";

fn add(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn read(path: &Path, cursor: &mut (String, u64)) -> (String, bool) {
    let part = part(path, &cursor.0, cursor.1).unwrap();
    *cursor = (part.file, part.next);
    (String::from_utf8(part.bytes).unwrap(), part.anew)
}

#[test]
fn lines_come_once_and_whole_also_over_a_log_that_is_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = log_path(dir.path(), "shop", INPUTS);
    let mut cursor = (String::new(), 0);
    assert_eq!(read(&path, &mut cursor), (String::new(), false));
    add(&path, "a\nb\nc");
    assert_eq!(read(&path, &mut cursor), ("a\nb\n".into(), false));
    assert_eq!(read(&path, &mut cursor), (String::new(), false));
    add(&path, "c\n");
    assert_eq!(read(&path, &mut cursor), ("cc\n".into(), false));
    add(&path, "d\n");
    fs::rename(&path, path.with_extension("log.1")).unwrap();
    assert_eq!(read(&path, &mut cursor), ("d\n".into(), false));
    add(&path, "e\n");
    assert_eq!(read(&path, &mut cursor), ("e\n".into(), false));
    // Who comes late gets all that is kept.
    let mut late = (String::new(), 0);
    assert_eq!(read(&path, &mut late).0 + &read(&path, &mut late).0, "a\nb\ncc\nd\ne\n");
}

#[test]
fn a_log_that_is_another_one_begins_anew_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = log_path(dir.path(), "shop", INPUTS);
    add(&path, "a\n");
    let mut cursor = ("of another node".to_owned(), 17);
    assert_eq!(read(&path, &mut cursor), ("a\n".into(), true));
    assert_eq!(read(&path, &mut cursor), (String::new(), false));
    // One that is shorter than it was is another one too.
    let mut cursor = (cursor.0, 100);
    assert_eq!(read(&path, &mut cursor), ("a\n".into(), true));
}

#[test]
fn much_comes_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = log_path(dir.path(), "shop", INPUTS);
    let line = "x".repeat(999) + "\n";
    add(&path, &line.repeat(600));
    let (mut cursor, mut all, mut parts) = ((String::new(), 0), String::new(), 0);
    loop {
        let (text, _) = read(&path, &mut cursor);
        if text.is_empty() {
            break;
        }
        assert!(text.ends_with('\n') && text.len() as u64 <= PART);
        (all, parts) = (all + &text, parts + 1);
    }
    assert_eq!((all.len(), parts), (600_000, 3));
}

async fn ask(logs: &Arc<Logs>, path: &str) -> (StatusCode, String, HeaderMap) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = routes(Arc::clone(logs)).oneshot(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap(), headers)
}

#[tokio::test]
async fn a_log_is_read_by_the_path_of_its_own_image_only() {
    let dir = tempfile::tempdir().unwrap();
    let pod = Pod { namespace: "system".into(), name: "operator-0".into() };
    let logs = Logs::new(dir.path().to_owned(), Some(pod));
    assert_eq!(logs.record("shop", "ubuntu", INPUTS), None, "nothing is served yet");
    logs.served_at(9440);
    add(&log_path(dir.path(), "shop", INPUTS), "one\ntwo\n");
    let record = logs.record("shop", "ubuntu", INPUTS).unwrap();
    assert_eq!((record.namespace.as_str(), record.pod.as_str(), record.port), ("system", "operator-0", Some(9440)));
    let (status, text, headers) = ask(&logs, &format!("{}&offset=0", record.path)).await;
    assert_eq!((status, text.as_str(), headers[OFFSET].to_str().unwrap()), (StatusCode::OK, "one\ntwo\n", "8"));
    let file = headers[FILE].to_str().unwrap().to_owned();
    let (status, text, _) = ask(&logs, &format!("{}&file={file}&offset=4", record.path)).await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "two\n"));

    // The same recipe in another namespace is another build.
    let record = |namespace: &str| logs.record(namespace, "ubuntu", INPUTS).unwrap();
    assert_eq!(ask(&logs, &record("team-a").path).await.1, "");
    logs.forget("team-a", INPUTS);
    let record = record("shop");
    assert_eq!(ask(&logs, &record.path).await.1, "one\ntwo\n");

    let other = Logs::new(dir.path().to_owned(), None);
    for path in [
        record.path.replace("/ubuntu/", "/rocky/"),
        record.path.replace("/shop/", "/team-a/"),
        record.path.replace("0a1b", "0a1c"),
        record.path.split("&key").next().unwrap().to_owned(),
        "/images/shop/ubuntu/log?inputs=..%2F..%2Fetc&key=AAAA".to_owned(),
    ] {
        assert_eq!(ask(&logs, &path).await.0, StatusCode::GONE, "{path}");
    }
    assert_eq!(ask(&other, &record.path).await.0, StatusCode::GONE, "a path of another process");
    assert_eq!(other.record("shop", "ubuntu", INPUTS), None, "one that is no pod");
}

#[test]
fn the_longest_path_fits_its_field() {
    let pod = Pod { namespace: "n".into(), name: "p".into() };
    let logs = Logs::new(PathBuf::new(), Some(pod));
    logs.served_at(1);
    let inputs = format!("sha256:{}", "f".repeat(64));
    let record = logs.record(&"n".repeat(63), &"i".repeat(253), &inputs).unwrap();
    assert!(record.path.len() <= 512, "{}", record.path.len());
}
