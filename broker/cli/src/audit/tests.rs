//! Judging looks that are made up: each kind of finding, and its innocent neighbours.
