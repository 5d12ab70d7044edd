#!/usr/bin/env python3
"""book-links.py SITE: fails if a link of a page leads to no page of the site, or to no place in it. Other hosts are not asked."""
import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.places.add(value)


if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
    sys.exit(f"{__doc__}\nbook-links: SITE is one directory, as target/book")
site = pathlib.Path(sys.argv[1]).resolve()
pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name not in ("print.html", "404.html", "toc.html")}
checked, wrong = 0, []
for path, page in pages.items():
    for link in page.links:
        target = urllib.parse.urlsplit(link)
        if target.scheme or target.netloc:
            continue
        checked += 1
        to = (path.parent / urllib.parse.unquote(target.path)).resolve() if target.path else path
        if to.is_dir():
            to = to / "index.html"
        place = urllib.parse.unquote(target.fragment)
        if not to.exists():
            wrong.append(f"{path.relative_to(site)}: {link} is not there")
        elif place and to in pages and place not in pages[to].places:
            wrong.append(f"{path.relative_to(site)}: {link}: no such place")
print("\n".join(wrong) or f"{len(pages)} pages, {checked} links, all of them lead somewhere")
sys.exit(1 if wrong or checked < 100 else 0)
