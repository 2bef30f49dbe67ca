//! Arguments as a pod of the operator gets them, read before it runs: one that it would refuse ends each pod at its start.

use clap::{Arg, Args, Command, FromArgMatches};

use super::{Flags, SettingsError};

impl Flags {
    /// The flags that these arguments give, without the environment of whoever asks. A value that Kubernetes fills in,
    /// `$(POD_NAME)`, is not judged.
    ///
    /// # Errors
    /// The first argument that the operator would refuse.
    pub fn of_arguments<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let command = Self::augment_args(Command::new("operator"))
            .no_binary_name(true)
            .disable_help_flag(true)
            .disable_version_flag(true)
            .mut_args(|arg: Arg| arg.env(None::<&str>));
        let mut given = Vec::new();
        for argument in arguments {
            let name = argument.strip_prefix("--").unwrap_or_default();
            let name = name.split_once('=').map_or(name, |(name, _)| name);
            if !name.is_empty() && !command.get_arguments().any(|arg| arg.get_long() == Some(name)) {
                return Err(format!("flags.{name}: `clusterstack operator` has no flag --{name}"));
            }
            if !argument.contains("$(") {
                given.push(argument);
            }
        }
        let flags = command.try_get_matches_from(given).and_then(|matches| Self::from_arg_matches(&matches));
        let flags = flags.map_err(|error| format!("flags: {}", line(&error)))?;
        flags.judged_elsewhere().map_err(|error| format!("flags: {error}"))?;
        Ok(flags)
    }

    /// Whether they go together, judged where the operator does not run: its environment is another.
    pub(super) fn judged_elsewhere(&self) -> Result<(), SettingsError> {
        match self.clone().settings() {
            Ok(_) | Err(SettingsError::Environment(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// What clap says, without how it is used.
pub(super) fn line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    #[test]
    fn what_the_operator_would_refuse_is_refused_before_it_runs() {
        for (argument, part) in [
            ("--alow-source=x", "flags.alow-source: `clusterstack operator` has no flag --alow-source"),
            ("--default-interval=abc", "flags: invalid value 'abc' for '--default-interval"),
            ("--default-interval=1s", "10s"),
            ("--metrics-bind-address=nonsense", "--metrics-bind-address"),
            ("--allow-cluster-scope=perhaps", "allow-cluster-scope"),
            ("more", "unexpected argument 'more'"),
        ] {
            let error = Flags::of_arguments([argument]).unwrap_err();
            assert!(error.contains(part), "{argument}: {error}");
        }
        // Its variables are in the cluster.
        for argument in ["--source=github", "--leader-elect-namespace=$(POD_NAMESPACE)", "--qps=$(QPS)"] {
            Flags::of_arguments([argument]).unwrap();
        }
    }

    #[test]
    fn each_flag_can_be_given_a_value_as_the_chart_gives_it() {
        for arg in Flags::augment_args(Command::new("x")).get_arguments() {
            assert!(!matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse), "{arg}");
        }
        for (arguments, expected) in [
            (&[][..], false),
            (&["--allow-cluster-scope", "--allow-any-kubeconfig"], true),
            (&["--allow-cluster-scope=true", "--allow-any-kubeconfig=true"], true),
            (&["--allow-cluster-scope=false", "--allow-any-kubeconfig=false"], false),
        ] {
            let flags = Flags::of_arguments(arguments.iter().copied()).unwrap();
            assert_eq!((flags.allow_cluster_scope, flags.allow_any_kubeconfig), (expected, expected), "{arguments:?}");
        }
    }
}
