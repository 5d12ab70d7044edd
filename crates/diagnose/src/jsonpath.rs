//! Templates as in `kubectl -o jsonpath`: text, `{.services[*].name}`, `{"\n"}`, `{range .services[*]}...{end}`. Pure.
//! A path is JSONPath (RFC 9535); kubectl's forms without `$` are accepted, too.

use jsonpath_rust::parser::model::JpQuery;
use jsonpath_rust::parser::parse_json_path;
use jsonpath_rust::query::{QueryRef, js_path_process};
use serde_json::Value;

/// A parsed template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Path(JpQuery),
    Range(JpQuery, Vec<Part>),
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
        if let Some(range) = word.strip_prefix("range ") {
            let (body, rest) = parts(rest, true)?;
            found.push(Part::Range(path(range.trim())?, body));
            text = rest;
        } else if let Some(literal) = word.strip_prefix('"').and_then(|word| word.strip_suffix('"')) {
            found.push(Part::Text(literal.replace("\\n", "\n").replace("\\t", "\t")));
        } else {
            found.push(Part::Path(path(word)?));
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

fn path(text: &str) -> Result<JpQuery, String> {
    let rest = text.strip_prefix(['$', '@']).unwrap_or(text);
    // kubectl's name of the whole value.
    let rest = if rest == "." { "" } else { rest };
    parse_json_path(&format!("${rest}")).map_err(|_| format!("{text:?} is no path; {ACCEPTED}"))
}

fn at<'a>(path: &JpQuery, value: &'a Value) -> Vec<&'a Value> {
    let found = js_path_process(path, value).unwrap_or_default();
    found.into_iter().map(QueryRef::val).collect()
}

fn render(parts: &[Part], value: &Value) -> String {
    let one = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let part = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Path(path) => at(path, value).into_iter().map(one).collect::<Vec<_>>().join(" "),
        Part::Range(path, body) => at(path, value).into_iter().map(|value| render(body, value)).collect(),
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
            ("{.services[?(@.name=='api')].name}", "api"),
            ("{range .services[*].name}{.} {@};{end}", "web web;api api;"),
            ("{.services[0].addresses}", "[\"10.0.0.1\"]"),
        ] {
            assert_eq!(Template::parse(template).unwrap().render(&value), expected, "{template}");
        }
        for wrong in ["{.services", "{services}", "{.a[x]}", "{range .a}", "{end}", "{.a[0}"] {
            assert!(Template::parse(wrong).unwrap_err().contains("accepted are"), "{wrong}");
        }
    }
}
