//! What a process of ours shows at `/metrics`.

use crate::{Process, http::try_call};
use std::time::Duration;
use tokio::time::timeout;

/// A page that takes longer is asked for again.
const ANSWER: Duration = Duration::from_secs(5);

impl Process {
    /// Where it shows its metrics, if it was told a place for them.
    fn metrics_url(&self) -> Option<String> {
        let address = self.arguments().find_map(|arg| arg.strip_prefix("http="))?;
        Some(format!("http://{address}/metrics"))
    }

    /// The sum over the labels of a metric; `None` of a program that has no metrics.
    ///
    /// # Errors
    /// It did not answer, or does not know the metric.
    pub async fn figure(&self, metric: &str) -> Result<Option<f64>, String> {
        let Some(url) = self.metrics_url() else {
            return Ok(None);
        };
        let answer = timeout(ANSWER, try_call("GET", &url, &[], "")).await;
        let answer = answer.map_err(|_| format!("{url}: no answer"))??;
        let page = String::from_utf8_lossy(&answer.body);
        let value = sum(&page, metric);
        let value = value.ok_or_else(|| format!("{url}: no {metric} in {page}"))?;
        Ok(Some(value))
    }
}

fn sum(page: &str, metric: &str) -> Option<f64> {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(metric)?;
        let labels = rest.starts_with('{') || rest.starts_with(' ');
        labels.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    let values: Vec<_> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::sum;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let page = "# HELP a_tasks some\na_tasks{plane=\"x\"} 3\na_tasks{plane=\"y\"} 4\na_tasks_max 9\nb 1.5\n";
        assert_eq!(sum(page, "a_tasks"), Some(7.0));
        assert_eq!(sum(page, "b"), Some(1.5));
        assert_eq!(sum(page, "a"), None);
    }
}
