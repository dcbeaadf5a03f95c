//! Formats of `/metrics`: OpenMetrics, or the older text format for programs that do not ask for it.

use hyper::HeaderMap;
use hyper::header::ACCEPT;

/// Format of the metrics in a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExpositionFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Text format 0.0.4 of Prometheus.
    PrometheusText,
}

impl ExpositionFormat {
    /// Returns the format for the `Accept` header of a request: OpenMetrics only where it is named, as Prometheus does.
    pub(crate) fn negotiate(headers: &HeaderMap) -> Self {
        let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let is_accepted = |range: &str| {
            let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
            parts.next().is_some_and(|media_type| media_type == "application/openmetrics-text")
                && !parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0)))
        };
        let is_named = accepts.flat_map(|value| value.split(',')).any(is_accepted);
        if is_named { Self::OpenMetrics } else { Self::PrometheusText }
    }

    /// Returns the content type of the response.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::PrometheusText => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts metrics from OpenMetrics to this format.
    pub(crate) fn convert(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::PrometheusText => prometheus_text(&open_metrics),
        }
    }
}

/// Converts OpenMetrics to the text format. There, a counter is named like its series, with `_total`, and neither units
/// nor a mark at the end exist.
fn prometheus_text(open_metrics: &str) -> String {
    let counters: std::collections::BTreeSet<&str> =
        open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut text = String::with_capacity(open_metrics.len() + open_metrics.len() / 16);
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(keyword), Some(name), Some(rest)) if counters.contains(name) => {
                text.extend(["# ", keyword, " ", name, "_total ", rest]);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn open_metrics_is_used_only_where_it_is_named() {
        for (accept, expected) in [
            ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", ExpositionFormat::OpenMetrics),
            ("text/plain;version=0.0.4;q=0.5, Application/OpenMetrics-Text; q=0.1", ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text;q=0,text/plain", ExpositionFormat::PrometheusText),
            ("*/*", ExpositionFormat::PrometheusText),
            ("text/html", ExpositionFormat::PrometheusText),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(ExpositionFormat::negotiate(&headers), expected, "{accept}");
        }
        assert_eq!(ExpositionFormat::negotiate(&HeaderMap::new()), ExpositionFormat::PrometheusText);
    }

    #[test]
    fn text_format_names_counters_like_their_series() {
        let open = "# HELP a_bytes Bytes.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total 1\n\
                    # HELP b_total All b.\n# TYPE b_total gauge\nb_total{x=\"# EOF\"} 2\n# EOF\n";
        let text = "# HELP a_bytes_total Bytes.\n# TYPE a_bytes_total counter\na_bytes_total 1\n\
                    # HELP b_total All b.\n# TYPE b_total gauge\nb_total{x=\"# EOF\"} 2\n";
        assert_eq!(prometheus_text(open), text);
        assert_eq!(ExpositionFormat::OpenMetrics.convert(open.to_owned()), open);
    }
}
