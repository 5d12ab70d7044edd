//! What images and objects are called, and what cannot be.

use super::{announcer, ccm, image, refusal, render};

#[test]
fn an_image_may_be_named_by_its_digest() {
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let both = |values: &str| {
        let objects = render(values);
        let (ccm, announcer) = (ccm(&objects), announcer(&objects));
        assert_eq!(image(&ccm), image(&announcer), "{values}");
        image(&ccm).to_owned()
    };
    for (repository, tag, expected) in [
        (format!("r.example:5000/a/b@{digest}"), "v1", format!("r.example:5000/a/b@{digest}")),
        (format!("a/b:v1@{digest}"), "", format!("a/b:v1@{digest}")),
        ("a/b".to_owned(), digest.as_str(), format!("a/b@{digest}")),
        ("a/b".to_owned(), &format!("v1@{digest}"), format!("a/b:v1@{digest}")),
    ] {
        assert_eq!(both(&format!("image: {{repository: '{repository}', tag: '{tag}'}}")), expected);
    }
    for (values, expected) in [
        ("image: {repository: 'a/b@sha256:12'}", "which is no image"),
        ("image: {repository: 'a/b:v1'}", "image.repository is \"a/b:v1\": the tag belongs in image.tag"),
        ("kube-vip: {image: {repository: 'r.example:5000/a/b:v1'}}", "the tag belongs in kube-vip.image.tag"),
    ] {
        let said = refusal(values);
        assert_eq!(said.matches(expected).count(), 2, "{said}");
    }
}

#[test]
fn two_workloads_of_one_name_are_refused() {
    for (values, named) in [
        ("fullnameOverride: kube-vip", "fullnameOverride (or nameOverride) is \"kube-vip\""),
        ("nameOverride: a\nkube-vip: {nameOverride: a}", "fullnameOverride (or nameOverride) is \"a\""),
        ("serviceAccount: {name: kube-vip}", "serviceAccount.name is \"kube-vip\""),
    ] {
        let said = refusal(values);
        assert_eq!(said.matches(named).count(), 2, "{said}");
    }
    render("fullnameOverride: kube-vip\nkube-vip: {enabled: false}");
    render("serviceAccount: {create: false, name: kube-vip}");
}
