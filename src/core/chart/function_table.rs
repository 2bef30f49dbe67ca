//! Which template functions there are, and how each compares with Helm 3.21's: what `docs/helm-functions.md` shows.

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
    /// Helm 4 alone has it; it is unknown to us as it is to Helm 3.
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

const HELM_FOUR: &[&str] = &[
    "durationDays",
    "durationHours",
    "durationMicroseconds",
    "durationMilliseconds",
    "durationMinutes",
    "durationNanoseconds",
    "durationRoundTo",
    "durationSeconds",
    "durationTruncateTo",
    "durationWeeks",
    "mustToDuration",
    "mustToToml",
    "mustToYaml",
];

const CLOCK: &str = "the time is that of the input; the local time zone is UTC";
const ORDER: &str = "sorted by key; Go's order is another each time";
const SEED: &str = "drawn from the seed of the input, so that a rendering can be repeated";
const WORDING: &str = "complaints about syntax are worded differently; null gives a map or list that is empty, not nil";
const JSON: &str = "complaints about syntax are worded differently; null gives a map or list that is empty, not nil; half a \
                    surrogate pair and numbers beyond a float64 are refused";
const NIL_LIST: &str = "what finds nothing gives an empty list, not a nil one: `toJson` of it is `[]`, not `null`";

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
    ("mustRegexFindAll", NIL_LIST),
    ("mustRegexSplit", NIL_LIST),
    ("now", CLOCK),
    ("randAlpha", SEED),
    ("randAlphaNum", SEED),
    ("randAscii", SEED),
    ("randBytes", SEED),
    ("randInt", SEED),
    ("randNumeric", SEED),
    ("regexFindAll", NIL_LIST),
    ("regexSplit", NIL_LIST),
    ("shuffle", SEED),
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
    let own = functions::names().into_iter().map(|name| {
        let difference = DIFFERENCES.iter().find(|(known, _)| *known == name);
        let state = difference.map_or(State::Same, |(_, how)| State::Differs(how));
        FunctionState { name, origin: origin(name), state }
    });
    let removed = REMOVED.iter().map(|name| FunctionState { name, origin: Origin::Sprig, state: State::Removed });
    let later = HELM_FOUR.iter().map(|name| FunctionState { name, origin: Origin::Helm, state: State::HelmFour });
    let mut states: Vec<_> = own.chain(removed).chain(later).collect();
    states.sort_unstable_by_key(|row| (row.name.to_lowercase(), row.name));
    states
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_that_of_a_function() {
        let names = functions::names();
        for (name, _) in DIFFERENCES {
            assert!(names.contains(name), "{name}");
        }
        for name in GO.split_whitespace().chain(HELM.split_whitespace()) {
            assert!(names.contains(&name), "{name}");
        }
        for name in REMOVED.iter().chain(HELM_FOUR) {
            assert!(!names.contains(name), "{name}");
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
