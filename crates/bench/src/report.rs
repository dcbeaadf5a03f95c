//! Result output: one line of JSON per result on standard output, and nothing else there.

use std::io::{Write, stdout};

use anyhow::Result;
use serde::Serialize;

/// One result line: the name of the measurement, the server and its figures.
#[derive(Debug, Serialize)]
struct ResultLine<'a, T> {
    result: &'a str,
    server: &'a str,
    #[serde(flatten)]
    figures: &'a T,
}

/// Prints one result line.
pub fn print(result: &str, server: &str, figures: &impl Serialize) -> Result<()> {
    writeln!(stdout().lock(), "{}", result_line(result, server, figures)?)?;
    Ok(())
}

fn result_line(result: &str, server: &str, figures: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(&ResultLine { result, server, figures })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Percentiles;
    use crate::process::Memory;
    use crate::process_usage::{ServerUsage, Usage};

    #[derive(Serialize)]
    struct Figures {
        events: u64,
        #[serde(flatten)]
        latency: Percentiles,
        #[serde(flatten)]
        usage: Usage,
    }

    #[test]
    fn result_is_one_flat_line() {
        let mut figures = Figures {
            events: 3,
            latency: Percentiles { p50_us: 1, p99_us: 2, max_us: 3 },
            usage: Usage { seconds: 0.5, generator_cpu_us_per_event: 4.0, server: None },
        };
        let short = r#"{"result":"load","server":"x","events":3,"p50_us":1,"p99_us":2,"max_us":3,"seconds":0.5,"generator_cpu_us_per_event":4.0"#;
        assert_eq!(result_line("load", "x", &figures).expect("serialises"), format!("{short}}}"));

        let memory = Memory { rss_anon_kb: 10, rss_file_kb: 20 };
        figures.usage.server = Some(ServerUsage { cpu_us_per_event: 5.5, memory, foreign_cores: 0.25 });
        let long =
            format!(r#"{short},"cpu_us_per_event":5.5,"rss_anon_kb":10,"rss_file_kb":20,"foreign_cores":0.25}}"#);
        assert_eq!(result_line("load", "x", &figures).expect("serialises"), long);
    }
}
