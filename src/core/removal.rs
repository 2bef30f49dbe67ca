//! What becomes of applied objects when the rights to delete them are gone.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::condition::Reason;
use crate::core::manifest::ObjectKey;
use crate::core::retry::ErrorClass;
use crate::core::status::Trouble;

/// With whose rights objects are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// The operator's own.
    Own,
    /// Those of a ServiceAccount, by its name.
    Named(String),
    /// Those of a ServiceAccount that does not exist.
    Missing(String),
}

/// Why an object is out of reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// RBAC denies it, in the API server's words.
    Denied(String),
    /// The operator's own rights are not used there: it is outside of the namespace.
    Outside,
}

/// What a pass over a release that is being deleted found.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// The release's namespace.
    pub namespace: &'a str,
    /// That namespace is being deleted.
    pub terminating: bool,
    /// With whose rights.
    pub account: &'a Account,
    /// What can't be read or deleted with them.
    pub obstacles: &'a BTreeMap<ObjectKey, Obstacle>,
}

/// What is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing stands in the way.
    GoOn,
    /// These are given up: what is in the namespace goes with it, `orphaned` is what nobody deletes.
    GiveUp {
        /// Outside of the namespace.
        orphaned: BTreeSet<ObjectKey>,
    },
    /// Nothing more is deleted before somebody has put it right.
    Wait(Trouble),
}

/// Decides. Nothing is ever deleted with other rights than it was applied with; only a namespace that goes takes what is in
/// it, and lets the release go.
pub fn decide(situation: &Situation<'_>) -> Verdict {
    let Situation { namespace, terminating, account, obstacles } = situation;
    let Some((key, obstacle)) = obstacles.first_key_value() else { return Verdict::GoOn };
    if *terminating {
        let outside = |key: &&ObjectKey| key.namespace != *namespace;
        return Verdict::GiveUp { orphaned: obstacles.keys().filter(outside).cloned().collect() };
    }
    let more = obstacles.len() - 1;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let left = "nothing more is deleted. To leave what was applied, annotate the release with \
                clusterstack.x-k8s.io/deletion-policy: orphan";
    let (reason, message) = match (account, obstacle) {
        (Account::Missing(name), _) => (
            Reason::ServiceAccountMissing,
            format!("ServiceAccount {namespace}/{name} does not exist: create it again with its rights; {left}"),
        ),
        (Account::Named(name), Obstacle::Denied(words)) => (
            Reason::ServiceAccountMissing,
            format!("ServiceAccount {namespace}/{name} lacks rights on {key}{more}: {words}. Give them back; {left}"),
        ),
        (Account::Own, Obstacle::Denied(words)) => {
            (Reason::FailedToDeleteObjects, format!("{key}{more} can't be deleted: {words}; {left}"))
        }
        (_, Obstacle::Outside) => (
            Reason::FailedToDeleteObjects,
            format!(
                "{key}{more} is outside of namespace {namespace}: set spec.serviceAccountName to a ServiceAccount with the \
                 rights to delete it; {left}"
            ),
        ),
    };
    Verdict::Wait(Trouble::new(ErrorClass::Waiting, reason, message))
}

/// Whether these words of the API server, said with HTTP 403, are about rights of who is asking. Admission speaks with 403
/// too, and who may not act as a ServiceAccount learns nothing of that one's rights.
pub fn is_denied(words: &str) -> bool {
    let by_admission = words.starts_with("admission webhook") || words.contains("denied request");
    words.contains("User \"")
        && words.contains("\" cannot ")
        && !words.contains("\" cannot impersonate ")
        && !by_admission
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &str, namespace: &str) -> ObjectKey {
        ObjectKey { group: String::new(), kind: kind.into(), namespace: namespace.into(), name: "x".into() }
    }

    /// What is given up, or why and in which words it waits.
    type Expected = Result<Option<BTreeSet<ObjectKey>>, (Reason, &'static str)>;
    /// Name, whether the namespace goes, whose rights, what is out of reach.
    type Case = (&'static str, bool, Account, Vec<(ObjectKey, Obstacle)>, Expected);

    #[test]
    fn what_is_out_of_reach_waits_and_only_a_namespace_that_goes_lets_it_go() {
        let denied = || Obstacle::Denied("no".into());
        let inside = || (key("ConfigMap", "shop"), denied());
        let cluster = || (key("ClusterRole", ""), denied());
        let elsewhere = || (key("ConfigMap", "bank"), Obstacle::Outside);
        let named = || Account::Named("a".into());
        let missing = || Account::Missing("a".into());
        let wait = |reason: Reason, part: &'static str| Err((reason, part));
        let gone = |keys: &[ObjectKey]| Ok(Some(keys.iter().cloned().collect::<BTreeSet<_>>()));
        let cases: Vec<Case> = vec![
            ("all within reach", false, named(), vec![], Ok(None)),
            ("all within reach, terminating", true, named(), vec![], Ok(None)),
            (
                "account gone",
                false,
                missing(),
                vec![inside()],
                wait(Reason::ServiceAccountMissing, "shop/a does not exist"),
            ),
            (
                "rights gone",
                false,
                named(),
                vec![inside(), cluster()],
                wait(Reason::ServiceAccountMissing, "shop/a lacks rights on ClusterRole x and 1 more: no"),
            ),
            (
                "own rights gone",
                false,
                Account::Own,
                vec![inside()],
                wait(Reason::FailedToDeleteObjects, "ConfigMap shop/x can't be deleted: no"),
            ),
            (
                "own rights do not reach there",
                false,
                Account::Own,
                vec![elsewhere()],
                wait(Reason::FailedToDeleteObjects, "ConfigMap bank/x is outside of namespace shop"),
            ),
            ("account gone, terminating, all inside", true, missing(), vec![inside()], gone(&[])),
            (
                "account gone, terminating",
                true,
                missing(),
                vec![inside(), cluster(), elsewhere()],
                gone(&[key("ClusterRole", ""), key("ConfigMap", "bank")]),
            ),
            ("rights gone, terminating", true, named(), vec![inside(), cluster()], gone(&[key("ClusterRole", "")])),
            ("own rights, terminating", true, Account::Own, vec![elsewhere()], gone(&[key("ConfigMap", "bank")])),
        ];
        for (name, terminating, account, obstacles, expected) in cases {
            let obstacles = obstacles.into_iter().collect();
            let situation = Situation { namespace: "shop", terminating, account: &account, obstacles: &obstacles };
            match (decide(&situation), expected) {
                (Verdict::GoOn, Ok(None)) => {}
                (Verdict::GiveUp { orphaned }, Ok(Some(expected))) => assert_eq!(orphaned, expected, "{name}"),
                (Verdict::Wait(trouble), Err((reason, part))) => {
                    assert_eq!((trouble.reason, trouble.class), (reason, ErrorClass::Waiting), "{name}");
                    assert!(trouble.message.contains(part), "{name}: {}", trouble.message);
                }
                (verdict, expected) => panic!("{name}: {verdict:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn words_about_rights_are_told_from_those_of_admission() {
        for (words, expected) in [
            (
                r#"configmaps "x" is forbidden: User "system:serviceaccount:a:b" cannot delete resource "configmaps""#,
                true,
            ),
            (r#"admission webhook "x" denied the request: User "a" cannot delete it"#, false),
            (
                r#"clusterclasses "x" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: in use"#,
                false,
            ),
            (
                r#"serviceaccounts "b" is forbidden: User "system:serviceaccount:o:o" cannot impersonate resource"#,
                false,
            ),
            ("unable to create new content in namespace x because it is being terminated", false),
        ] {
            assert_eq!(is_denied(words), expected, "{words}");
        }
    }
}
