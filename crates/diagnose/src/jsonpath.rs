//! Templates as in `kubectl -o jsonpath`: text, `{.services[*].name}`, `{"\n"}`, `{range .services[*]}...{end}`. Pure.

use serde_json::Value;

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Vec<Step>),
    Range(Vec<Step>, Vec<Part>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Index(usize),
    All,
}

const ACCEPTED: &str = "accepted are text, {.field[0].field}, [*], {\"\\n\"} and {range .field[*]}...{end}";

impl Template {
    /// Parses `text`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (parts, rest) = parts(text, false)?;
        if rest.is_empty() { Ok(Self(parts)) } else { Err(format!("an {{end}} without {{range}}; {ACCEPTED}")) }
    }

    /// Applies the template to `value`. A missing field yields nothing.
    pub fn render(&self, value: &Value) -> String {
        render(&self.0, value)
    }
}

fn parts(mut text: &str, inside: bool) -> Result<(Vec<Part>, &str), String> {
    let mut found = Vec::new();
    while let Some(open) = text.find('{') {
        if open > 0 {
            found.push(Part::Text(text[..open].to_owned()));
        }
        let close = text[open..].find('}').ok_or_else(|| format!("a {{ is not closed; {ACCEPTED}"))? + open;
        let (word, rest) = (text[open + 1..close].trim(), &text[close + 1..]);
        text = rest;
        if word == "end" {
            return Ok((found, if inside { rest } else { "{end}" }));
        }
        if let Some(path) = word.strip_prefix("range ") {
            let (body, rest) = parts(rest, true)?;
            found.push(Part::Range(steps(path.trim())?, body));
            text = rest;
        } else if let Some(literal) = word.strip_prefix('"').and_then(|word| word.strip_suffix('"')) {
            found.push(Part::Text(literal.replace("\\n", "\n").replace("\\t", "\t")));
        } else {
            found.push(Part::Path(steps(word)?));
        }
    }
    if inside {
        return Err(format!("a {{range}} has no {{end}}; {ACCEPTED}"));
    }
    if !text.is_empty() {
        found.push(Part::Text(text.to_owned()));
    }
    Ok((found, ""))
}

fn steps(path: &str) -> Result<Vec<Step>, String> {
    let wrong = || format!("{path:?} is no path; {ACCEPTED}");
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    rest = rest.strip_prefix('@').unwrap_or(rest);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(bracket) = rest.strip_prefix('[') {
            let (inside, after) = bracket.split_once(']').ok_or_else(wrong)?;
            steps.push(match inside {
                "*" => Step::All,
                _ => match inside.strip_prefix('\'').and_then(|inside| inside.strip_suffix('\'')) {
                    Some(name) => Step::Field(name.to_owned()),
                    None => Step::Index(inside.parse().map_err(|_| wrong())?),
                },
            });
            rest = after;
        } else {
            let name = rest.strip_prefix('.').ok_or_else(wrong)?;
            let end = name.find(['.', '[']).unwrap_or(name.len());
            if end > 0 {
                steps.push(if &name[..end] == "*" { Step::All } else { Step::Field(name[..end].to_owned()) });
            }
            rest = &name[end..];
        }
    }
    Ok(steps)
}

fn at<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![value];
    for step in steps {
        found = found
            .into_iter()
            .flat_map(|value| match step {
                Step::Field(name) => value.get(name).into_iter().collect::<Vec<_>>(),
                Step::Index(index) => value.get(index).into_iter().collect(),
                Step::All => match value {
                    Value::Array(all) => all.iter().collect(),
                    Value::Object(all) => all.values().collect(),
                    _ => Vec::new(),
                },
            })
            .collect();
    }
    found
}

fn render(parts: &[Part], value: &Value) -> String {
    let one = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(steps) => at(steps, value).into_iter().map(one).collect::<Vec<_>>().join(" "),
        Part::Range(steps, body) => at(steps, value).into_iter().map(|value| render(body, value)).collect(),
    };
    parts.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_are_read_as_kubectl_reads_them() {
        let value = json!({"services": [{"name": "web", "addresses": ["10.0.0.1"], "ageSeconds": 5},
            {"name": "api", "a.b": "x"}]});
        for (template, expected) in [
            ("{.services[*].name}", "web api"),
            ("{.services[0].addresses[0]}", "10.0.0.1"),
            ("{$.services[0].ageSeconds} s", "5 s"),
            ("{range .services[*]}{.name}={.addresses[*]}{\"\\n\"}{end}.", "web=10.0.0.1\napi=\n."),
            ("{.services[1]['a.b']}", "x"),
            ("{.services[7].name}{.none}", ""),
            ("plain", "plain"),
            ("{.services[0].addresses}", "[\"10.0.0.1\"]"),
        ] {
            assert_eq!(Template::parse(template).unwrap().render(&value), expected, "{template}");
        }
        for wrong in ["{.services", "{services}", "{.a[x]}", "{range .a}", "{end}", "{.a[0}"] {
            assert!(Template::parse(wrong).unwrap_err().contains("accepted are"), "{wrong}");
        }
    }
}
