//! Deletions: a release that somebody uses is not deleted; a ClusterStack may be, since its deletion waits.

use std::collections::BTreeSet;

use super::{CONTROLLERS, Verdict, listed};
use crate::core::in_use::User;

/// Who wants to delete what.
#[derive(Clone, Copy, Debug)]
pub struct Deletion<'a> {
    /// Name of the object.
    pub name: &'a str,
    /// Who asks.
    pub user: &'a str,
    /// Who we are, if that is known.
    pub operator: Option<&'a str>,
    /// Its namespace is being deleted.
    pub in_terminating_namespace: bool,
    /// It was deleted before, and waits.
    pub is_deleting: bool,
    /// What its annotations say of the deletion.
    pub mark: Mark,
}

/// What the annotations of an object say of its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Nothing,
    /// What it applied is to stay (`clusterstack.x-k8s.io/deletion-policy: orphan`).
    Orphaned,
    /// `clusterctl move` took it elsewhere (`clusterctl.cluster.x-k8s.io/delete-for-move`). It deletes releases before the
    /// Clusters that use them.
    Moved,
}

impl Deletion<'_> {
    /// Whether it is allowed whoever uses the object: then nobody has to look.
    pub fn is_free(&self) -> bool {
        CONTROLLERS.contains(&self.user)
            || self.operator == Some(self.user)
            || self.in_terminating_namespace
            || self.is_deleting
            || self.mark != Mark::Nothing
    }
}

/// Whether a ClusterStackRelease may be deleted that `users` use.
pub fn release(deletion: &Deletion<'_>, users: &BTreeSet<User>) -> Verdict {
    if deletion.is_free() || users.is_empty() {
        return Verdict::allow();
    }
    Verdict::of(
        [Some(format!(
            "release {} is in use by {}: move them to another ClusterClass, or delete them. Nothing else is to be done: a \
             release that nobody uses and no ClusterStack asks for goes by itself",
            deletion.name,
            listed(users)
        ))],
        Vec::new(),
    )
}

/// What is said to the deletion of a ClusterStack whose releases `users` use.
pub fn stack(deletion: &Deletion<'_>, users: &BTreeSet<User>) -> Verdict {
    if deletion.is_free() || users.is_empty() {
        return Verdict::allow();
    }
    Verdict::warn(format!(
        "the deletion of ClusterStack {} waits, and nothing of it is deleted: in use by {}. It goes on by itself when they \
         have moved to another ClusterClass or are gone",
        deletion.name,
        listed(users)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Deletion<'static> = Deletion {
        name: "docker-x-1-34-v1",
        user: "alice",
        operator: Some("system:serviceaccount:system:clusterstack"),
        in_terminating_namespace: false,
        is_deleting: false,
        mark: Mark::Nothing,
    };

    fn users(clusters: &[&str]) -> BTreeSet<User> {
        clusters.iter().map(|name| User::Cluster((*name).to_owned())).collect()
    }

    #[test]
    fn what_somebody_uses_is_not_deleted() {
        for (name, deletion, used, refused) in [
            ("in use", PLAIN, true, true),
            ("not in use", PLAIN, false, false),
            ("we are not known", Deletion { operator: None, ..PLAIN }, true, true),
            ("the garbage collector", Deletion { user: CONTROLLERS[0], ..PLAIN }, true, false),
            ("the namespace controller", Deletion { user: CONTROLLERS[1], ..PLAIN }, true, false),
            ("a controller manager", Deletion { user: CONTROLLERS[2], ..PLAIN }, true, false),
            ("the operator", Deletion { user: "system:serviceaccount:system:clusterstack", ..PLAIN }, true, false),
            (
                "a namesake",
                Deletion { user: "system:serviceaccount:team:generic-garbage-collector", ..PLAIN },
                true,
                true,
            ),
            ("a terminating namespace", Deletion { in_terminating_namespace: true, ..PLAIN }, true, false),
            ("again", Deletion { is_deleting: true, ..PLAIN }, true, false),
            ("left behind", Deletion { mark: Mark::Orphaned, ..PLAIN }, true, false),
            ("moved", Deletion { mark: Mark::Moved, ..PLAIN }, true, false),
        ] {
            let users = if used { users(&["team/c"]) } else { users(&[]) };
            let verdict = release(&deletion, &users);
            assert_eq!(verdict.refusal.is_some(), refused, "{name}: {verdict:?}");
            assert!(verdict.warnings.is_empty());
            let of_stack = stack(&deletion, &users);
            assert_eq!((of_stack.refusal, of_stack.warnings.len()), (None, usize::from(refused)), "{name}");
        }
    }

    #[test]
    fn the_first_ten_users_are_named() {
        let all: Vec<String> = (10..22).map(|n| format!("team/c{n}")).collect();
        let names: Vec<&str> = all.iter().map(String::as_str).collect();
        let said = release(&PLAIN, &users(&names)).refusal.unwrap();
        assert!(said.contains("Cluster team/c10, Cluster team/c11") && said.contains("c19 and 2 more: move"), "{said}");
        assert!(stack(&PLAIN, &users(&["team/c"])).warnings[0].contains("in use by Cluster team/c."));
    }
}
