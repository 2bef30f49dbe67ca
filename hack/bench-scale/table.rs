//! The table of what was found.

use std::fmt::Write as _;

use crate::Found;

/// Two Markdown tables.
#[expect(clippy::cast_precision_loss, reason = "counts of requests, far below 2^52")]
pub(crate) fn table(all: &[Found]) -> String {
    let mut out = String::from(
        "| stacks × releases | all Ready | floor | ratio | requests per release | writes of status | CPU per release | at rest | peak |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for found in all {
        let releases = (found.size.stacks * found.size.releases) as f64;
        let _ = writeln!(
            out,
            "| {} × {} | {:.2} s | {:.2} s | {:.2} | {:.1} | {:.1} | {:.1} ms | {:.0} MiB | {:.0} MiB |",
            found.size.stacks,
            found.size.releases,
            found.seconds,
            found.floor_seconds,
            found.seconds / found.floor_seconds,
            found.requests.all as f64 / releases,
            found.requests.status as f64 / releases,
            1000.0 * found.cpu_seconds / releases,
            found.memory_at_rest,
            found.memory_peak,
        );
    }
    out.push_str(
        "\n| stacks × releases | before: memory | before: executable | at rest: executable | quiet: requests | of these lists | writes | Leases | CPU | restart | requests | writes |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for found in all {
        let _ = writeln!(
            out,
            "| {} × {} | {:.0} MiB | {:.0} MiB | {:.0} MiB | {} in {} s | {} | {} | {} | {:.2} s | {:.2} s | {} | {} |",
            found.size.stacks,
            found.size.releases,
            found.memory_before,
            found.files_before,
            found.files_at_rest,
            found.quiet.all,
            found.quiet_seconds,
            found.quiet.lists,
            found.quiet.writes,
            found.quiet.leases,
            found.quiet_cpu_seconds,
            found.restart_seconds,
            found.restart.all,
            found.restart.writes,
        );
    }
    out
}
