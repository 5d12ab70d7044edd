"""Rows of the documents that promise something, and the tests that hold them."""

import re

# A weakness of the Go provider, a defect of the reference chart, a promise about an upgrade of the host.
ROW_ID = re.compile(r"(W-|D-|H)\d{1,2}")


def rows_of_documents(root):
    """Page, first cell, and the tests that the last cell names, of each row of their tables."""
    for page in ("compatibility", "packaging"):
        for line in (root / f"docs/{page}.md").read_text().splitlines():
            if line.startswith("| "):
                cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
                yield page, cells[0], re.findall(r"`(\w+)`", cells[-1])
