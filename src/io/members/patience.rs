//! How long an answer of the API server is waited for.

use std::time::Duration;

use tokio::time::Instant;

use crate::io::apply::refusal;

/// How long an answer may take at first: a Lease has time for several tries.
const ANSWER: Duration = Duration::from_secs(3);
/// How long it may take after one that took too long, until they are quick again: three such answers fit into the term of a
/// Lease, a renewal, a look at the others' Leases, and the next renewal.
const SLOW_ANSWER: Duration = Duration::from_millis(3300);

/// Why a request did not do what it should.
pub(super) enum Failed {
    /// There is no such object any more, or it is another's.
    Gone,
    /// No answer, or a refusal.
    Trouble(String),
}

impl Failed {
    pub(super) fn text(self, what: &str) -> String {
        match self {
            Self::Gone => format!("{what}: it was changed meanwhile"),
            Self::Trouble(why) => format!("{what}: {why}"),
        }
    }
}

/// How patient we are with the API server.
#[derive(Debug)]
pub(super) struct Patience {
    limit: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { limit: ANSWER }
    }
}

impl Patience {
    /// The answer, if it comes in time.
    pub(super) async fn answer<T>(
        &mut self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failed> {
        let start = Instant::now();
        let Ok(answer) = tokio::time::timeout(self.limit, request).await else {
            let limit = std::mem::replace(&mut self.limit, SLOW_ANSWER);
            return Err(Failed::Trouble(format!("no answer within {} ms", limit.as_millis())));
        };
        if start.elapsed() < ANSWER / 2 {
            self.limit = ANSWER;
        }
        match answer {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Err(Failed::Gone),
            Err(error) => Err(Failed::Trouble(refusal(&error).message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn slow(patience: &mut Patience, takes: Duration) -> Result<(), String> {
        let request = async {
            tokio::time::sleep(takes).await;
            Ok(())
        };
        patience.answer(request).await.map_err(|failed| failed.text("x"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_api_server_is_waited_for_longer_until_it_is_quick_again() {
        let mut patience = Patience::default();
        let takes = Duration::from_millis(3200);
        assert_eq!(slow(&mut patience, takes).await, Err("x: no answer within 3000 ms".to_owned()));
        assert_eq!(slow(&mut patience, takes).await, Ok(()));
        assert_eq!(slow(&mut patience, Duration::from_mins(1)).await, Err("x: no answer within 3300 ms".to_owned()));
        assert_eq!(slow(&mut patience, Duration::ZERO).await, Ok(()));
        assert_eq!(slow(&mut patience, takes).await, Err("x: no answer within 3000 ms".to_owned()));
    }
}
