//! Claims: how a former owner that was only paused learns within milliseconds that it has lost (decisions.md 23).
