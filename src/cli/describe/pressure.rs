//! Resources that the node is short of, and the pods that would be evicted for them.

use core::fmt::Write as _;

use serde_json::Value;

use super::{super::table, list_at, text_at, text_or};
use crate::api::WallTime;

/// Writes the pressure; `pressure` is the answer of `/pressure`.
pub(super) fn write_pressure(out: &mut String, pressure: &Value, now: WallTime) {
    let short = list_at(pressure, "/short");
    if short.is_empty() {
        // Not a cell, for the line stands between two tables.
        out.push_str("Short of:  <none>\n");
    } else {
        out.push_str("Short of:\n  Signal\tAvailable\tThreshold\tSince\n  ------\t---------\t---------\t-----\n");
    }
    for one in short {
        let t = |path: &str| text_at(one, path);
        let soft = if one["soft"] == true { " (soft)" } else { "" };
        let _ = writeln!(
            out,
            "  {}\t{}\t{}{soft}\t{}",
            t("/signal"),
            t("/available"),
            t("/limit"),
            table::human_age(WallTime::parse(t("/since")), now)
        );
    }
    let by = text_at(pressure, "/by");
    if by.is_empty() {
        return;
    }
    let order = list_at(pressure, "/order");
    if order.is_empty() {
        let _ = writeln!(out, "Eviction order by {by}:\t<no pod may be evicted>");
        return;
    }
    let _ = writeln!(out, "Eviction order by {by}:");
    out.push_str("  Namespace\tName\tPriority\tUsed\tRequested\n  ---------\t----\t--------\t----\t---------\n");
    for pod in order {
        let _ = writeln!(
            out,
            "  {}\t{}\t{}\t{}\t{}",
            text_at(pod, "/namespace"),
            text_at(pod, "/name"),
            pod["priority"],
            text_or(text_at(pod, "/used"), "<unknown>"),
            text_at(pod, "/request")
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::super::elastic, *};

    #[test]
    fn what_the_node_is_short_of() {
        let now = WallTime::parse("2024-01-01T01:00:00Z").expect("time");
        let shown = |pressure: Value| {
            let mut out = String::new();
            write_pressure(&mut out, &pressure, now);
            elastic::align_columns(&out)
        };
        assert_eq!(
            shown(json!({"short": [], "by": "", "order": []})),
            "Short of:  <none>\n"
        );
        let short = json!([
            {"signal": "memory.available", "available": "90Mi", "limit": "100Mi",
                "since": "2024-01-01T00:50:00Z", "soft": false},
            {"signal": "nodefs.available", "available": "1Gi", "limit": "2Gi",
                "since": "2024-01-01T00:59:00Z", "soft": true},
        ]);
        let order = json!([
            {"namespace": "default", "name": "web", "priority": 0, "used": "200Mi", "request": "0"},
            {"namespace": "default", "name": "db", "priority": 10, "used": null, "request": "1Gi"},
        ]);
        assert_eq!(
            shown(json!({"short": short, "by": "memory.available", "order": order})),
            "Short of:
  Signal            Available  Threshold   Since
  ------            ---------  ---------   -----
  memory.available  90Mi       100Mi       10m
  nodefs.available  1Gi        2Gi (soft)  60s
Eviction order by memory.available:
  Namespace  Name  Priority  Used       Requested
  ---------  ----  --------  ----       ---------
  default    web   0         200Mi      0
  default    db    10        <unknown>  1Gi
"
        );
        let nobody = json!({"short": [], "by": "memory.available", "order": []});
        assert!(shown(nobody).contains("<no pod may be evicted>"));
    }
}
