//! `clusterstack doctor` and `clusterstack shards`: what no longer works is told, whatever it said of itself last.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Operator, World, check, wait_for, wait_within};

/// What a command prints as JSON, and its exit code.
fn told(t: &World, command: &str) -> (Value, Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_clusterstack"))
        .args([command, "-o", "json"])
        .env("KUBECONFIG", &t.plane.kubeconfig)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}")), output.status.code(), said)
}

/// The replica of this world, as `shards` shows it.
fn replica(t: &World) -> Option<Value> {
    let (rows, ..) = told(t, "shards");
    rows.as_array().unwrap().iter().find(|row| row["leaseNamespace"] == t.namespace.as_str()).cloned()
}

#[tokio::test]
async fn a_replica_that_was_killed_is_not_at_work() {
    let t = World::new("killed").await;
    let flags = ["--leader-elect", "--leader-elect-namespace", &t.namespace];
    let operator = Operator::start_with(&t, t.plane.operator_kubeconfig(), &flags, &[("POD_NAME", Path::new("only"))]);
    wait_for("the replica to lead", || async {
        let row = replica(&t);
        check(row.as_ref().is_some_and(|row| row["ready"] == true && row["leader"] == true), &row)
    })
    .await;
    operator.kill();
    wait_within(Duration::from_secs(90), "its Lease to have run out", || async {
        let row = replica(&t);
        let is_told = |row: &Value| {
            (&row["ready"], &row["leader"]) == (&Value::from(false), &Value::from(false))
                && row["ended"].as_str().is_some_and(|why| why.starts_with("its Lease of 15 s was renewed "))
        };
        check(row.as_ref().is_some_and(is_told), &row)
    })
    .await;
    let (found, code, said) = told(&t, "doctor");
    assert_eq!(code, Some(1), "{found:#}{said}");
    let is_it = |one: &&Value| {
        one["check"] == "replicas" && one["message"].as_str().unwrap().contains("whatever they said last")
    };
    let finding = found.as_array().unwrap().iter().find(is_it).unwrap_or_else(|| panic!("{found:#}"));
    assert_eq!(finding["grade"], "bad", "{found:#}");
}
