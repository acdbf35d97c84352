//! What a measurement found, as JSON and as text. MB and GB are powers of ten.

use super::cpu::CpuUse;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Times from one microsecond to an hour, to three digits.
pub struct Latencies(Histogram<u64>);

/// The quantiles that are reported, with their names.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99_9", 0.999)];

impl Default for Latencies {
    fn default() -> Self {
        const HOUR_US: u64 = 3_600_000_000;
        Self(Histogram::new_with_bounds(1, HOUR_US, 3).expect("constant bounds are valid"))
    }
}

impl Latencies {
    /// Counts one; beyond an hour it counts as an hour.
    pub fn record(&mut self, time: Duration) {
        self.0
            .saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    /// Takes another's in.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can be out of range.
        self.0.add(&other.0).expect("equal bounds");
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// `{p50, p95, p99, p99_9, max}` in milliseconds; null if nothing was counted.
    pub fn json(&self) -> Value {
        if self.0.is_empty() {
            return Value::Null;
        }
        let mut object = Map::new();
        for (name, quantile) in QUANTILES {
            object.insert(
                name.into(),
                milliseconds(self.0.value_at_quantile(quantile)),
            );
        }
        object.insert("max".into(), milliseconds(self.0.max()));
        object.into()
    }
}

fn milliseconds(micros: u64) -> Value {
    (micros as f64 / 1000.0).into()
}

/// A measurement.
pub struct Report {
    /// "produce", "fetch", …
    pub name: &'static str,
    /// Records; `None` if it was not about records.
    pub records: Option<u64>,
    /// Payload bytes.
    pub bytes: u64,
    /// From the first to the last.
    pub elapsed: Duration,
    /// Named kinds of latency.
    pub latencies: Vec<(&'static str, Latencies)>,
    /// CPU time; `None` if it was not measured.
    pub cpu: Option<CpuUse>,
    /// Whatever else there is to say.
    pub more: Vec<(&'static str, Value)>,
}

impl Report {
    /// As one JSON object.
    pub fn json(&self) -> Value {
        let seconds = self.elapsed.as_secs_f64();
        let mut object = Map::new();
        object.insert("bench".into(), self.name.into());
        object.insert("bytes".into(), self.bytes.into());
        object.insert("elapsed_ms".into(), rounded(seconds * 1e3));
        object.insert(
            "megabytes_per_second".into(),
            rounded(self.bytes as f64 / 1e6 / seconds),
        );
        if let Some(records) = self.records {
            object.insert("records".into(), records.into());
            object.insert(
                "records_per_second".into(),
                rounded(records as f64 / seconds),
            );
        }
        for (name, latencies) in &self.latencies {
            object.insert((*name).into(), latencies.json());
        }
        if let Some(cpu) = &self.cpu {
            object.insert("cpu_seconds_per_gb".into(), self.cpu_json(cpu));
        }
        object.extend(
            self.more
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone())),
        );
        object.into()
    }

    fn cpu_json(&self, cpu: &CpuUse) -> Value {
        let per_gb = |seconds: f64| rounded(seconds / (self.bytes as f64 / 1e9));
        let servers: Map<String, Value> = cpu
            .servers
            .iter()
            .map(|(name, used)| (name.clone(), per_gb(*used)))
            .collect();
        json!({ "client": per_gb(cpu.client), "servers": servers })
    }

    /// As lines for people: one a fact.
    pub fn text(&self) -> String {
        let mut lines = String::new();
        write_lines(&mut lines, "", &self.json());
        lines
    }
}

fn write_lines(lines: &mut String, path: &str, value: &Value) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                write_lines(lines, &path, value);
            }
        }
        Value::String(text) => lines.push_str(&format!("{path:36} {text}\n")),
        other => lines.push_str(&format!("{path:36} {other}\n")),
    }
}

/// Four digits behind the point; not a number (nothing was done) is null.
pub fn rounded(value: f64) -> Value {
    if value.is_finite() {
        ((value * 1e4).round() / 1e4).into()
    } else {
        Value::Null
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_times_recorded() {
        let (mut all, mut part) = (Latencies::default(), Latencies::default());
        (1..=500).for_each(|ms| all.record(Duration::from_millis(ms)));
        (501..=1000).for_each(|ms| part.record(Duration::from_millis(ms)));
        all.merge(&part);
        let json = all.json();
        for (name, expected) in [
            ("p50", 500.0),
            ("p95", 950.0),
            ("p99", 990.0),
            ("p99_9", 999.0),
            ("max", 1000.0),
        ] {
            let value = json[name].as_f64().expect(name);
            assert!(
                (value - expected).abs() <= expected / 500.0,
                "{name} = {value}"
            );
        }
        assert_eq!(all.count(), 1000);
        assert_eq!(
            Latencies::default().json(),
            Value::Null,
            "no times, no quantiles"
        );
    }

    #[test]
    fn a_time_beyond_the_scale_is_counted_at_its_end() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::ZERO);
        latencies.record(Duration::from_secs(1 << 40));
        assert_eq!(latencies.count(), 2);
        assert!(latencies.json()["max"].as_f64().expect("a number") >= 3_600_000.0 * 0.99);
    }

    #[test]
    fn rates_are_per_second_and_cpu_per_gigabyte() {
        let report = Report {
            name: "produce",
            records: Some(2_000_000),
            bytes: 2_000_000_000,
            elapsed: Duration::from_secs(4),
            latencies: vec![("produce_ms", Latencies::default())],
            cpu: Some(CpuUse {
                client: 3.0,
                servers: vec![("talweg-storage".into(), 1.0)],
            }),
            more: vec![("streams", json!(2))],
        };
        let json = report.json();
        assert_eq!(json["megabytes_per_second"], json!(500.0));
        assert_eq!(json["records_per_second"], json!(500_000.0));
        assert_eq!(
            json["cpu_seconds_per_gb"],
            json!({"client": 1.5, "servers": {"talweg-storage": 0.5}})
        );
        assert_eq!(
            (&json["streams"], &json["produce_ms"]),
            (&json!(2), &Value::Null)
        );
        assert!(
            report
                .text()
                .contains("cpu_seconds_per_gb.servers.talweg-storage"),
            "{}",
            report.text()
        );
    }
}
