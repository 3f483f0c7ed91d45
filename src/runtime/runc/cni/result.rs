//! Answers of plugins.

use core::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::api::strict::from_json;

/// Longest text of a plugin that goes into an error, bytes.
const TEXT_LIMIT: usize = 1024;

/// Addresses of the pod in a result, in order, each once.
///
/// Source: CNI specification 1.1, "Success result types"; the shape is the same since 0.3.0.
/// An address of an interface outside the sandbox (the bridge's) is not the pod's.
pub(super) fn parse_pod_ips(result: &Value) -> Vec<IpAddr> {
    let interfaces = result.get("interfaces").and_then(Value::as_array);
    let outside = |ip: &Value| {
        let index = ip
            .get("interface")
            .and_then(Value::as_u64)
            .and_then(|i| usize::try_from(i).ok());
        index
            .and_then(|i| interfaces?.get(i))
            .is_some_and(|interface| {
                interface
                    .get("sandbox")
                    .and_then(Value::as_str)
                    .unwrap_or("")
                    .is_empty()
            })
    };
    let mut ips: Vec<IpAddr> = Vec::new();
    for ip in result
        .get("ips")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|ip| !outside(ip))
    {
        let address = ip.get("address").and_then(Value::as_str).unwrap_or("");
        let address = address.split('/').next().unwrap_or("");
        if let Ok(ip) = address.parse::<IpAddr>()
            && !ips.contains(&ip)
        {
            ips.push(ip);
        }
    }
    ips
}

/// A plugin's own error.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CniPluginError {
    code: u32,
    msg: String,
    details: String,
}

/// Turns the output of a failed plugin into one text.
///
/// Most plugins print an error object on standard output; those that die before that write to standard error.
pub(super) fn plugin_failure_text(stdout: &[u8], stderr: &[u8], code: i32) -> String {
    let mut text = match from_json::<CniPluginError>(stdout) {
        Ok(error) if !error.msg.is_empty() || !error.details.is_empty() => {
            let join = if error.msg.is_empty() || error.details.is_empty() {
                ""
            } else {
                "; "
            };
            format!("{}{join}{} (code {})", error.msg, error.details, error.code)
        }
        _ => {
            let spoken = if stderr.is_empty() { stdout } else { stderr };
            let spoken = String::from_utf8_lossy(&spoken[..spoken.len().min(TEXT_LIMIT)]);
            match spoken.trim() {
                "" => format!("exit code {code} without a message"),
                words => format!("exit code {code}: {words}"),
            }
        }
    };
    if let Some((at, _)) = text.char_indices().nth(TEXT_LIMIT) {
        text.truncate(at);
    }
    let absent = ["executable file not found", "no such file"];
    if text.contains("iptables") && absent.iter().any(|words| text.contains(words)) {
        text.push_str(": install the iptables package");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let ips = |text: &str| {
            let value = serde_json::from_str(text).expect(text);
            parse_pod_ips(&value)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        for (name, text, want) in [
            (
                "bridge",
                r#"{"cniVersion":"0.4.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/ns"}],
                    "ips":[{"version":"4","interface":1,"address":"10.1.0.7/24","gateway":"10.1.0.1"}]}"#,
                vec!["10.1.0.7"],
            ),
            (
                "address of the bridge is not the pod's",
                r#"{"interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/ns"}],
                    "ips":[{"interface":0,"address":"10.1.0.1/24"},{"interface":1,"address":"fd00::7/64"}]}"#,
                vec!["fd00::7"],
            ),
            (
                "without interfaces; twice the same",
                r#"{"ips":[{"address":"10.1.0.9/24"},{"address":"10.1.0.9/24"},{"address":"rubbish"},{}]}"#,
                vec!["10.1.0.9"],
            ),
            ("nothing", r#"{"ips":null}"#, vec![]),
        ] {
            assert_eq!(ips(text), want, "{name}");
        }
    }

    #[test]
    fn one_clear_error() {
        for (stdout, stderr, want) in [
            (
                r#"{"cniVersion":"0.4.0","code":100,"msg":"no subnet","details":"file x"}"#,
                "log noise",
                "no subnet; file x (code 100)",
            ),
            (r#"{"code":999,"msg":"bad"}"#, "", "bad (code 999)"),
            ("", "panic: oh\n", "exit code 2: panic: oh"),
            ("not json", "", "exit code 2: not json"),
            ("", "", "exit code 2 without a message"),
            (
                r#"{"code":999,"msg":"exec: \"iptables\": executable file not found in $PATH"}"#,
                "",
                "exec: \"iptables\": executable file not found in $PATH (code 999): install the iptables package",
            ),
        ] {
            assert_eq!(
                plugin_failure_text(stdout.as_bytes(), stderr.as_bytes(), 2),
                want
            );
        }
    }
}
