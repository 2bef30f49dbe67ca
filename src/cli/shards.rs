//! `clusterstack shards`: the replicas of the operator, and what each has of the work.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::{Args, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::ListParams;
use serde::Serialize;

use super::connection::{self, ConnectionArgs};
use super::output::{self, Format};
use super::report;
use crate::api::operator_shard::{ShardLoad, ShardSettings, ShardShare};
use crate::api::{OperatorShard, OperatorShardStatus};
use crate::core::share::life::{Life, life};
use crate::io::{leases, stored};

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack shards                    # every replica, its share and its load
  clusterstack shards -o json | jq '.[] | select(.ready | not) | .name'

A replica whose Lease has run out is not ready and does not lead, whatever it said last. Who may not
list the Leases of its namespace is told that it is not known.";

/// Flags of `clusterstack shards`.
#[derive(Args, Clone, Debug)]
pub struct ShardsArgs {
    #[command(flatten)]
    connection: ConnectionArgs,

    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: ShardsFormat,
}

/// Forms of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShardsFormat {
    /// For people.
    Text,
    /// A list of replicas.
    Json,
    /// A list of replicas.
    Yaml,
}

/// A replica. The field names are API of `-o json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    lease_namespace: String,
    ready: bool,
    leader: bool,
    version: String,
    shard_classes: Vec<String>,
    share: ShardShare,
    load: ShardLoad,
    members: Vec<String>,
    settings: Option<ShardSettings>,
    created: Option<Timestamp>,
    last_change: Option<Timestamp>,
    /// Why it is neither ready nor leads, whatever it said last.
    #[serde(skip_serializing_if = "String::is_empty")]
    ended: String,
}

impl Row {
    fn of(shard: &OperatorShard) -> Self {
        let status: OperatorShardStatus = shard.status.clone().unwrap_or_default();
        Self {
            name: shard.name_any(),
            lease_namespace: shard.spec.lease_namespace.clone(),
            ready: status.ready,
            leader: status.leader,
            version: status.version,
            shard_classes: status.shard_classes,
            share: status.share,
            load: status.load,
            members: status.members,
            settings: status.settings,
            created: shard.creation_timestamp().map(|at| at.0),
            last_change: status.last_change.map(|at| at.0),
            ended: String::new(),
        }
    }

    /// What its Lease says counts before its own last words.
    fn judged_by(mut self, life: Life) -> Self {
        if let Life::Ended(why) = life {
            (self.ready, self.leader, self.ended) = (false, false, why);
        }
        self
    }
}

/// Prints the replicas.
///
/// # Errors
/// No way to the API server, no right to list, or nobody to print to.
pub fn run(args: &ShardsArgs) -> Result<()> {
    let rows = connection::block_on(read(args))?;
    match args.output {
        ShardsFormat::Json => output::print(&output::format(&rows, Format::Json)?),
        ShardsFormat::Yaml => output::print(&output::format(&rows, Format::Yaml)?),
        ShardsFormat::Text if rows.is_empty() => {
            output::note!("no replicas share the work: an operator with --leader-elect=false is alone");
            Ok(())
        }
        ShardsFormat::Text => output::print(&table(&rows, Timestamp::now())),
    }
}

async fn read(args: &ShardsArgs) -> Result<Vec<Row>> {
    let connection = args.connection.connect().await?;
    let params = ListParams::default();
    let listed = connection.answer(stored::list_cluster_wide::<OperatorShard>(&connection.client, &params)).await?;
    let (shards, left_out) = listed.map_err(|error| {
        let is_forbidden = matches!(&error, kube::Error::Api(status) if status.code == 403);
        let refused = connection.refused("listed", "OperatorShards", error);
        if is_forbidden {
            refused.advising("ask for the right to do so: replicas are not of a namespace")
        } else {
            refused
        }
    })?;
    report::left_out(&left_out);
    let read =
        async { (leases::of_replicas(&connection.client, &shards).await, leases::now(&connection.client).await) };
    let (leases, now) = connection.answer(read).await?;
    let mut unknown = BTreeSet::new();
    let mut rows = Vec::new();
    for row in shards.iter().map(Row::of) {
        rows.push(match life(&leases, (&row.lease_namespace, &row.name), now) {
            Ok(life) => row.judged_by(life),
            Err(why) => {
                unknown.insert(format!("whether the replicas live is not known: {why}"));
                row
            }
        });
    }
    let ended = rows.iter().filter(|row| !row.ended.is_empty());
    let ended: Vec<String> = ended.map(|row| format!("{} is not at work: {}", row.name, row.ended)).collect();
    report::left_out(unknown.iter().chain(&ended));
    rows.sort_by(|a, b| (&a.lease_namespace, &a.name).cmp(&(&b.lease_namespace, &b.name)));
    Ok(rows)
}

const TITLES: [&str; 13] = [
    "NAME", "READY", "LEADER", "VERSION", "STACKS", "SOURCES", "CLUSTERS", "IMAGES", "BUILDS", "CLASSES", "SETTINGS",
    "CHANGED", "AGE",
];

/// Which settings it runs with, and where it is to go, or will not.
fn settings(settings: Option<&ShardSettings>) -> String {
    match settings {
        None => "-".to_owned(),
        Some(ShardSettings { running, wanted, .. }) if running == wanted => running.clone(),
        Some(ShardSettings { running, wanted, refused }) => {
            let running = if running.is_empty() { "-" } else { running };
            if refused.is_empty() { format!("{running} -> {wanted}") } else { format!("{running} ({wanted} refused)") }
        }
    }
}

fn table(rows: &[Row], now: Timestamp) -> String {
    let word = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let cells = |row: &Row| {
        let builds = match row.load.builds_queued {
            0 => row.load.builds_running.to_string(),
            queued => format!("{} (+{queued})", row.load.builds_running),
        };
        [
            row.name.clone(),
            word(row.ready),
            word(row.leader),
            row.version.clone(),
            row.share.cluster_stacks.to_string(),
            row.share.sources.to_string(),
            row.share.clusters.to_string(),
            row.share.node_images.to_string(),
            builds,
            if row.shard_classes.is_empty() { "-".to_owned() } else { row.shard_classes.join(",") },
            settings(row.settings.as_ref()),
            since(row.last_change, now),
            since(row.created, now),
        ]
    };
    let lines: Vec<[String; 13]> = std::iter::once(TITLES.map(str::to_owned)).chain(rows.iter().map(cells)).collect();
    output::columns(&lines)
}

/// How long ago, in the largest unit, as kubectl writes ages.
fn since(at: Option<Timestamp>, now: Timestamp) -> String {
    let Some(at) = at else { return "-".to_owned() };
    let seconds = now.duration_since(at).max(SignedDuration::ZERO).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn share_load_and_age_are_shown() {
        let shard: OperatorShard = serde_json::from_value(json!({
            "metadata": {"name": "op-0-1f", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"leaseNamespace": "system", "identity": "op-0_2a"},
            "status": {
                "ready": true, "version": "0.1.0", "members": ["op-0-1f"], "lastChange": "2026-01-01T00:58:59Z",
                "share": {"clusterStacks": 12, "releases": 30, "sources": 2, "clusters": 170, "nodeImages": 4},
                "load": {"buildsRunning": 2, "buildsQueued": 5}, "shardClasses": ["big", "old"],
                "settings": {"running": "0a1b2c3d4e5f", "wanted": "5f4e3d2c1b0a"},
            },
        }))
        .unwrap();
        insta::assert_snapshot!(table(&[Row::of(&shard)], "2026-01-01T01:00:00Z".parse().unwrap()), @"
        NAME     READY  LEADER  VERSION  STACKS  SOURCES  CLUSTERS  IMAGES  BUILDS  CLASSES  SETTINGS                      CHANGED  AGE
        op-0-1f  yes    no      0.1.0    12      2        170       4       2 (+5)  big,old  0a1b2c3d4e5f -> 5f4e3d2c1b0a  61s      60m
        ");
        let now: Timestamp = "2026-01-04T00:00:00Z".parse().unwrap();
        let ages = ["2026-01-03T12:00:00Z", "2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z"];
        assert_eq!(ages.map(|at| since(at.parse().ok(), now)), ["12h", "3d", "0s"]);
        assert_eq!(since(None, now), "-");
        let said = |running: &str, refused: &str| {
            let (running, wanted) = (running.to_owned(), "b".to_owned());
            settings(Some(&ShardSettings { running, wanted, refused: refused.to_owned() }))
        };
        assert_eq!([said("b", ""), said("a", "why"), said("", "")], ["b", "a (b refused)", "- -> b"]);
        assert_eq!(settings(None), "-");
        let mut row = Row::of(&shard);
        row.leader = true;
        let row = row.judged_by(Life::Ended("its Lease is gone".to_owned()));
        assert_eq!((row.ready, row.leader, row.ended.as_str()), (false, false, "its Lease is gone"));
        assert!(Row::of(&shard).judged_by(Life::Lives).ready);
    }
}
