//! Log lines of a failed start: the frame and the texts that users of the Go provider search for (CCM spec 1.1).

/// The lines for one error at the start, top to bottom.
pub fn lines(error: &str, full_help_was_asked_for: bool) -> Vec<String> {
    let rule = "=".repeat(93);
    let mut lines = vec![
        rule.clone(),
        "FATAL: cloudprovider.harvesterhci.io failed to start".to_owned(),
        format!("Error detail: {error}"),
    ];
    if ["unknown flag", "unexpected argument", "flag provided but not defined", "bad flag syntax"]
        .iter()
        .any(|text| error.contains(text))
    {
        lines.push("Hint: a flag may be invalid or misspelt.".to_owned());
        lines.push("Hint: flags of an installation by Helm come from .Values.extraArgs.".to_owned());
        lines.push("Hint: write flags as --name=value.".to_owned());
        if !full_help_was_asked_for {
            lines.push("Hint: --show-full-help-on-error=true prints all flags.".to_owned());
        }
    }
    lines.push(rule);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_names_the_error_and_hints_only_where_a_flag_is_wrong() {
        let plain = lines("cloud-config: file is empty", false);
        assert_eq!(plain.len(), 4);
        assert_eq!(plain[0].len(), 93);
        assert_eq!(plain[2], "Error detail: cloud-config: file is empty");
        assert_eq!(lines("unexpected argument '--x' found", false).len(), 8);
        assert_eq!(lines("unexpected argument '--x' found", true).len(), 7);
    }
}
