//! Fields that the API server lets nobody change once an object is there.

use crate::api::REPLACE;

/// How the validation of Kubernetes (`k8s.io/kubernetes/pkg/apis/*/validation`, 1.34) and rules of definitions say it.
const SAYINGS: &[&str] = &[
    "is immutable",
    "cannot change roleRef",
    "may not change once set",
    "may not be changed in an update",
    "updates to statefulset spec for fields other than",
    "updates to parameters are forbidden",
    "updates to provisioner are forbidden",
    "updates to reclaimPolicy are forbidden",
];

/// The fields that can't be changed, from the causes of a refusal: pairs of field and message. `None` where anything else
/// is wrong, too: making the object anew would not help.
pub fn fields<'a>(causes: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Vec<&'a str>> {
    let mut fields = Vec::new();
    for (field, message) in causes {
        if !SAYINGS.iter().any(|saying| message.contains(saying)) {
            return None;
        }
        if !fields.contains(&field) {
            fields.push(field);
        }
    }
    (!fields.is_empty()).then_some(fields)
}

/// What to do about it.
pub fn advice(fields: &[&str], words: &str) -> String {
    format!(
        "{} can't be changed once the object is there: delete it by hand, or let the chart annotate it with {REPLACE}=true \
         (an addon's stage: say replace: true), then it is made anew; {words}",
        fields.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nothing_but_making_it_anew_helps_is_immutable() {
        let selector = ("spec.selector", "Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: field is immutable");
        for (name, causes, expected) in [
            ("nothing is said", vec![], None),
            ("a selector", vec![selector], Some(vec!["spec.selector"])),
            ("said twice", vec![selector, selector], Some(vec!["spec.selector"])),
            (
                "something else is wrong, too",
                vec![selector, ("spec.replicas", "Invalid value: -1: must be greater")],
                None,
            ),
            ("a role", vec![("roleRef", "Invalid value: {}: cannot change roleRef")], Some(vec!["roleRef"])),
            (
                "a StatefulSet",
                vec![("spec", "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden")],
                Some(vec!["spec"]),
            ),
            ("only invalid", vec![("spec.x", "Required value")], None),
        ] {
            assert_eq!(fields(causes), expected, "{name}");
        }
        let advice = advice(&["spec.selector"], "it said no");
        assert!(advice.starts_with("spec.selector can't be changed") && advice.contains("replace=true"), "{advice}");
    }
}
