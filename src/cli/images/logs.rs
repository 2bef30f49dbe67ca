//! The log of a build: from who builds, through the API server's pod proxy, or from the pod of its Job; by the user's own
//! rights.

mod follow;
mod pods;
mod proxy;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use self::follow::{Next, Place, Sight};
use super::{Image, NameArgs, Named};
use crate::cli::output;
use crate::cli::report::Hinted;

/// How often is looked for more.
const LOOK: Duration = Duration::from_secs(1);
/// How long an API server that answered before may be silent.
const SILENCE: Duration = Duration::from_mins(1);

/// Examples in the help.
pub const EXAMPLES: &str = "\
Examples:
  clusterstack images logs ubuntu-2404-kube-v1-34-0-5f0c3b2a9d8e7f61
  clusterstack images logs -f NAME -n team-a     # until the build is at its end, whoever goes on with it

Needs `get` on providernodeimagereleases in the image's namespace, and `get` on pods/proxy in the operator's (executor
Task), or `list` on pods and `get` on pods/log in the image's (executor Job).";

/// Flags of `clusterstack images logs`.
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    #[command(flatten)]
    image: NameArgs,

    /// Go on until the build is at its end
    #[arg(short, long)]
    follow: bool,
}

/// Prints the log.
///
/// # Errors
/// No such image, no right to its log, or nobody to print to.
pub async fn run(args: &LogsArgs) -> Result<ExitCode> {
    let (named, image) = args.image.find().await?;
    Log::new(named).print(image, args.follow).await?;
    Ok(ExitCode::SUCCESS)
}

/// How a look at a log ended.
#[derive(Debug)]
enum Look {
    /// All that there is was printed.
    Drained,
    /// It is not there now; why.
    Gone(String),
    /// It is not the user's to read; why.
    Elsewhere(String),
    /// The user may not read it.
    Denied(Hinted),
}

/// A log that is printed.
struct Log {
    named: Named,
    served: proxy::Cursor,
    pods: pods::Cursor,
    /// The last lines as they were last seen, where there are no others.
    tail: String,
    has_printed: bool,
    /// The line that was printed last.
    last: String,
    /// What was last said of what is waited for.
    said: String,
}

impl Log {
    fn new(named: Named) -> Self {
        let (served, pods) = (proxy::Cursor::default(), pods::Cursor::default());
        Self { named, served, pods, tail: String::new(), has_printed: false, last: String::new(), said: String::new() }
    }

    async fn print(mut self, image: Image, follow: bool) -> Result<()> {
        let mut image = image;
        loop {
            let is_last = !follow || follow::is_over(&image);
            let sight = self.look(&image).await?;
            match follow::next(&sight, is_last, self.has_printed) {
                Next::End => return Ok(()),
                Next::Tail(why) => return self.print_tail(&image, &why),
                Next::FollowTail(why) => self.print_tail(&image, &why)?,
                Next::Wait(why) => self.say(&why),
            }
            image = self.again().await?;
        }
    }

    /// Prints what is new where the log is.
    async fn look(&mut self, image: &Image) -> Result<Sight> {
        let look = match follow::place(image) {
            Place::Served(served) => self.read_served(&served).await?,
            Place::Job { namespace, uid, container } => self.read_pods(&namespace, &uid, &container).await?,
            Place::Nowhere(why) => return Ok(Sight::Nowhere(why)),
            Place::NotYet => return Ok(Sight::NotYet),
        };
        match look {
            Look::Drained => {
                self.said.clear();
                Ok(Sight::Drained)
            }
            Look::Gone(why) => Ok(Sight::Gone(why)),
            Look::Elsewhere(why) => Ok(Sight::Nowhere(why)),
            Look::Denied(error) => Err(error.into()),
        }
    }

    /// The image once more; an API server that answered before is about to come back.
    async fn again(&self) -> Result<Image> {
        let since = Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            match self.named.read().await {
                Err(error) if since.elapsed() > SILENCE || is_final(&error) => return Err(error),
                Err(_) => {}
                Ok(image) => return Ok(image),
            }
        }
    }

    /// Says once what is waited for.
    fn say(&mut self, what: &str) {
        if !what.is_empty() && self.said != what {
            output::note!("{}", output::visible(what));
            what.clone_into(&mut self.said);
        }
    }

    /// Says why, and prints the lines of the status that were not printed yet. Where all of them were, there is nothing to say.
    fn print_tail(&mut self, image: &Image, why: &str) -> Result<()> {
        let now = image.status.as_ref().map(|status| status.log_tail.clone()).unwrap_or_default();
        let text = follow::unseen(&self.tail, &now, &self.last);
        self.tail = now;
        if !text.is_empty() || !self.has_printed {
            self.say(why);
        }
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.has_printed |= !text.is_empty();
        if let Some(last) = text.lines().rfind(|line| !line.is_empty()) {
            last.clone_into(&mut self.last);
        }
        output::print(&follow::shown(text))
    }
}

/// Whether it is of no use to ask again: the image is gone, or the right to read it. Other refusals have their cause.
fn is_final(error: &anyhow::Error) -> bool {
    error.chain().any(<dyn Error>::is::<Hinted>) && !error.chain().any(<dyn Error>::is::<kube::Error>)
}
