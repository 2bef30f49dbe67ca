//! Which template functions there are, and how each compares with Helm 3.21's: what `docs/helm-functions.md` shows.

use super::HelmVersion;
use super::go_template::functions;

/// Whose function it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Go's `text/template`
    Go,
    /// sprig, which Helm hands on.
    Sprig,
    /// Helm itself.
    Helm,
}

/// How a function compares with Helm 3.21's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Gives what Helm's gives.
    Same,
    /// Gives something else, in the way told.
    Differs(&'static str),
    /// Helm removes it from sprig, so that it is unknown to us too.
    Removed,
    /// Helm 4 alone has it; like Helm 3 we refuse it, unless told to render like Helm 4.
    HelmFour,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct FunctionState {
    /// As templates call it.
    pub name: &'static str,
    /// Whose it is.
    pub origin: Origin,
    /// How it compares.
    pub state: State,
}

const GO: &str = "and call eq ge gt html index js le len lt ne not or print printf println urlquery";

const HELM: &str = "fail fromJson fromJsonArray fromToml fromYaml fromYamlArray getHostByName include lookup required \
                    toJson toToml toYaml toYamlPretty tpl";

const REMOVED: &[&str] = &["env", "expandenv"];

const CLOCK: &str = "the time is that of the input; the local time zone is UTC";
const ORDER: &str = "sorted by key; Go's order is another each time";
const SEED: &str = "drawn from the seed of the input, so that a rendering can be repeated";
const WORDING: &str = "complaints about syntax are worded differently";
const JSON: &str = "complaints about syntax are worded differently; half a \
                    surrogate pair and numbers beyond a float64 are refused";

const DIFFERENCES: &[(&str, &str)] = &[
    ("ago", CLOCK),
    ("bcrypt", SEED),
    ("date", CLOCK),
    ("dateInZone", CLOCK),
    ("date_in_zone", CLOCK),
    ("durationRound", CLOCK),
    ("encryptAES", SEED),
    ("fromJson", JSON),
    ("fromJsonArray", JSON),
    ("fromToml", "complaints about syntax are worded differently; dates and times without a zone are texts, not times"),
    ("fromYaml", WORDING),
    ("fromYamlArray", WORDING),
    ("genCA", SEED),
    ("genCAWithKey", SEED),
    ("genPrivateKey", "drawn from the seed of the input, and kept"),
    ("genSelfSignedCert", SEED),
    ("genSelfSignedCertWithKey", SEED),
    ("genSignedCert", SEED),
    ("genSignedCertWithKey", SEED),
    ("htmlDate", CLOCK),
    ("htmlDateInZone", CLOCK),
    ("htpasswd", SEED),
    ("keys", ORDER),
    ("lookup", "answers come with the input; one that is missing is empty, as in `helm template`, and reported"),
    ("mustFromJson", "complaints about syntax are worded differently"),
    ("mustSlice", "an end behind the end of the list is refused; Go goes on to what its array has room for"),
    ("now", CLOCK),
    ("randAlpha", SEED),
    ("randAlphaNum", SEED),
    ("randAscii", SEED),
    ("randBytes", SEED),
    ("randInt", SEED),
    ("randNumeric", SEED),
    ("shuffle", SEED),
    ("slice", "an end behind the end of the list is refused; Go goes on to what its array has room for"),
    ("sortAlpha", "a list of texts stays as it was; Helm sorts that list too, wherever else it is used"),
    ("toYaml", "U+007F, U+0080 to U+009F and U+FFFE are escaped; for a value that holds one Helm gives nothing at all"),
    ("uuidv4", SEED),
    ("values", ORDER),
];

/// All functions, sorted by name.
pub fn function_states() -> Vec<FunctionState> {
    let origin = |name: &str| {
        let is_in = |names: &str| names.split_whitespace().any(|known| known == name);
        match name {
            _ if is_in(GO) => Origin::Go,
            _ if is_in(HELM) => Origin::Helm,
            _ => Origin::Sprig,
        }
    };
    let of_helm_3 = functions::names(HelmVersion::V3);
    let own = functions::names(HelmVersion::V4).into_iter().map(|name| {
        let difference = DIFFERENCES.iter().find(|(known, _)| *known == name);
        let state = match difference {
            _ if !of_helm_3.contains(&name) => State::HelmFour,
            Some((_, how)) => State::Differs(how),
            None => State::Same,
        };
        let origin = if state == State::HelmFour { Origin::Helm } else { origin(name) };
        FunctionState { name, origin, state }
    });
    let removed = REMOVED.iter().map(|name| FunctionState { name, origin: Origin::Sprig, state: State::Removed });
    let mut states: Vec<_> = own.chain(removed).collect();
    states.sort_unstable_by_key(|row| (row.name.to_lowercase(), row.name));
    states
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_that_of_a_function() {
        let names = functions::names(HelmVersion::V3);
        for (name, _) in DIFFERENCES {
            assert!(names.contains(name), "{name}");
        }
        for name in GO.split_whitespace().chain(HELM.split_whitespace()) {
            assert!(names.contains(&name), "{name}");
        }
        let later = functions::names(HelmVersion::V4);
        for name in REMOVED {
            assert!(!later.contains(name), "{name}");
        }
        for name in ["durationHours", "mustToDuration", "mustToToml", "mustToYaml"] {
            assert!(!names.contains(&name) && later.contains(&name), "{name}");
        }
    }

    #[test]
    fn each_function_is_there_once() {
        let states = function_states();
        let mut names: Vec<&str> = states.iter().map(|row| row.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
