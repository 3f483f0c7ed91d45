//! Variables that reach a program of the machine which runs as a pod. Row PRVD-08.

use alloc::string::String;

/// Last character of a list entry that matches all variables with its beginning.
const ANY_END: char = '*';

/// Reason why a variable does not reach the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongVariable {
    /// The dynamic linker would load code from elsewhere because of the variable. No list allows that.
    #[error("it would load code from outside of picolet.process.directories")]
    LoadsCode,
    /// The operator has not listed the variable.
    #[error("it is not in picolet.process.variables")]
    NotListed,
}

/// Judges a variable of a pod by the operator's list. Many programs run code that a variable holds or names:
/// `BASH_ENV`, `PERL5OPT`, `NODE_OPTIONS`. So only the operator, who knows the programs, can say which are harmless.
///
/// Variables of Services need no entry: the cluster makes them for each pod. `set_by_pod`: the pod sets it, or may: then its form
/// says nothing.
pub fn judge_variable(
    name: &str,
    set_by_pod: bool,
    listed: &[String],
) -> Result<(), WrongVariable> {
    if loads_code(name) {
        return Err(WrongVariable::LoadsCode);
    }
    let is_meant = |entry: &String| match entry.strip_suffix(ANY_END) {
        Some(begin) => name.starts_with(begin),
        None => entry == name,
    };
    if (!set_by_pod && is_of_service(name)) || listed.iter().any(is_meant) {
        return Ok(());
    }
    Err(WrongVariable::NotListed)
}

/// Source: ld.so(8).
fn loads_code(name: &str) -> bool {
    name.starts_with("LD_") || name == "GLIBC_TUNABLES"
}

/// The forms that [`super::service_env`] makes.
fn is_of_service(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
    let is_of_port = |(_, port): (&str, &str)| port.starts_with(|c: char| c.is_ascii_digit());
    name.bytes().all(is_plain)
        && (name.ends_with("_SERVICE_HOST")
            || name.ends_with("_SERVICE_PORT")
            || name.contains("_SERVICE_PORT_")
            || name.ends_with("_PORT")
            || name.rsplit_once("_PORT_").is_some_and(is_of_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_those_of_the_list() {
        // PRVD-08
        let listed = ["GREETING", "SENSOR_*", "LD_*"].map(String::from);
        for name in [
            "GREETING",
            "SENSOR_",
            "SENSOR_RATE",
            "KUBERNETES_SERVICE_HOST",
            "MY_DB_SERVICE_PORT",
            "MY_DB_SERVICE_PORT_SQL_IN",
            "MY_DB_PORT",
            "MY_DB_PORT_53_UDP",
            "MY_DB_PORT_53_UDP_ADDR",
        ] {
            assert_eq!(judge_variable(name, false, &listed), Ok(()), "{name}");
        }
        // Start scripts of programs for the JVM make options of it.
        let of_pod = judge_variable("JMX_PORT", true, &listed);
        assert_eq!(of_pod, Err(WrongVariable::NotListed));
        assert_eq!(judge_variable("SENSOR_PORT", true, &listed), Ok(()));
        for name in [
            "GREETINGS",
            "greeting",
            "SENSOR",
            "PATH",
            "BASH_ENV",
            "PYTHONPATH",
            "BASH_FUNC_a%%_PORT",
            "node_PORT",
            "A_PORT_B",
            "",
        ] {
            let judged = judge_variable(name, false, &listed);
            assert_eq!(judged, Err(WrongVariable::NotListed), "{name}");
        }
        for name in ["LD_PRELOAD", "LD_PRELOAD_SERVICE_HOST", "GLIBC_TUNABLES"] {
            for listed in [&listed[..], &["*".into()], &[]] {
                let judged = judge_variable(name, false, listed);
                assert_eq!(judged, Err(WrongVariable::LoadsCode), "{name}");
            }
        }
        assert_eq!(judge_variable("PATH", true, &["*".into()]), Ok(()));
        assert!(judge_variable("GREETING", false, &[]).is_err());
    }
}
