use serde_json::json;

use super::*;

#[test]
fn scalars_are_read_by_yaml_1_1() {
    let text = "a: yes\nb: 0777\nc: 1_000\nd: 0-0\ne: ~\nf: 2020-01-01\ntrue: x\n1: z\n";
    let expected = json!({
        "a": true, "b": 511, "c": 1000, "d": "0-0", "e": null, "f": "2020-01-01", "true": "x", "1": "z"
    });
    assert_eq!(parse(text), Ok(expected));
}
