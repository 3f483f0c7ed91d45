//! What a status says of a pod that went because the node was short (EVICT-12).

/// Reads the message, which is to be a kubelet's to the letter but for the amounts; those: the threshold, what was left, and
/// what container `main` used if it is blamed. It asked for nothing.
pub(crate) fn amounts(message: &str, resource: &str) -> Result<Vec<String>, String> {
    let read = || {
        let rest = message.strip_prefix("The node was low on resource: ")?;
        let rest = rest.strip_prefix(resource)?;
        let rest = rest.strip_prefix(". Threshold quantity: ")?;
        let (threshold, rest) = rest.split_once(", available: ")?;
        let (available, rest) = rest.split_once(". ")?;
        let mut all = vec![threshold, available];
        if !rest.is_empty() {
            let used = rest.strip_prefix("Container main was using ")?;
            let (used, rest) = used.split_once(", request is 0, has larger consumption of ")?;
            if rest.strip_prefix(resource)? != ". " {
                return None;
            }
            all.push(used);
        }
        let is_amount = |amount: &str| {
            let number = amount.trim_end_matches(|c| "KMGik".contains(c));
            number.parse::<u64>().is_ok()
        };
        all.iter().all(|amount| is_amount(amount)).then_some(all)
    };
    let found = read().ok_or_else(|| format!("for want of {resource}: {message:?}"))?;
    Ok(found.into_iter().map(str::to_owned).collect())
}
