//! README, the other pages beside it, and `docs/`: text, and the blocks that people copy from it.

use std::path::{Path, PathBuf};

use testbed::programs::workspace;

/// One page.
#[derive(Debug)]
pub struct Document {
    /// Its file.
    pub path: PathBuf,
    /// All of it.
    pub text: String,
}

/// What stands between two lines of three back quotes.
#[derive(Debug)]
pub struct Block {
    /// Such as `sh` or `yaml`.
    pub language: String,
    /// Its lines.
    pub text: String,
    /// File and line, for messages.
    pub place: String,
    /// The heading that it stands below, without the marks.
    pub section: String,
}

/// Every page of the project's directory and of `docs/`, by name.
pub fn all() -> Vec<Document> {
    let pages = |directory: &Path| std::fs::read_dir(directory).expect("the project has documents");
    let pages = pages(workspace()).chain(pages(&workspace().join("docs")));
    let mut paths: Vec<PathBuf> = pages.map(|entry| entry.expect("the directory can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| Document { text: std::fs::read_to_string(&path).expect("it was listed"), path })
        .collect()
}

/// The page of this name, such as `docs/ipam.md`; panics if there is none.
pub fn page(name: &str) -> Document {
    let found = all().into_iter().find(|document| document.name() == name);
    found.unwrap_or_else(|| panic!("there is no page {name}"))
}

impl Document {
    /// Its file below the project's directory.
    pub fn name(&self) -> String {
        self.path.strip_prefix(workspace()).unwrap_or(&self.path).display().to_string()
    }

    /// Its blocks in order; panics if one is not closed.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        let mut section = String::new();
        for (number, line) in self.text.lines().enumerate() {
            let Some(fence) = line.trim_start().strip_prefix("```") else {
                if let Some(block) = &mut open {
                    block.text.push_str(line);
                    block.text.push('\n');
                } else if line.starts_with('#') {
                    line.trim_start_matches('#').trim().clone_into(&mut section);
                }
                continue;
            };
            if let Some(block) = open.take() {
                blocks.push(block);
            } else {
                let (language, place) = (fence.trim().to_owned(), format!("{}:{}", self.name(), number + 1));
                open = Some(Block { language, text: String::new(), place, section: section.clone() });
            }
        }
        assert!(open.is_none(), "{}: a ``` is not closed", self.name());
        blocks
    }

    /// The blocks of one language below a heading; panics if there are none.
    pub fn section(&self, heading: &str, language: &str) -> Vec<Block> {
        let mut blocks = self.blocks();
        blocks.retain(|block| block.section == heading && block.language == language);
        assert!(!blocks.is_empty(), "{}: no {language} below {heading:?}", self.name());
        blocks
    }
}
