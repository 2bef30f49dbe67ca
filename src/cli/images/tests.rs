use serde_json::json;

use super::*;

fn image(object: &str, image: &str) -> Image {
    serde_json::from_value(json!({
        "metadata": {"name": object, "namespace": "shop"},
        "spec": {"templateRef": {"name": "t"}, "image": {"name": image, "steps": []}, "inputs": "sha256:1"},
    }))
    .unwrap()
}

#[test]
fn an_image_is_found_by_the_name_that_its_release_gives_it() {
    let images = || vec![image("ubuntu-v1-1a", "ubuntu-v1"), image("rocky-2b", "rocky"), image("rocky-3c", "rocky")];
    assert_eq!(called(images(), "ubuntu-v1", "shop").unwrap().name_any(), "ubuntu-v1-1a");
    let missing = called(images(), "ubuntu", "shop").unwrap_err().to_string();
    assert!(missing.contains("no ProviderNodeImageRelease or image \"ubuntu\" in namespace shop"), "{missing}");
    let several = called(images(), "rocky", "shop").unwrap_err().to_string();
    assert!(several.contains("2 builds"), "{several}");
}
