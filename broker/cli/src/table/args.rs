//! The flags of every list, and their help. Must never read or print anything.

use clap::Args;

// A plain comment: a doc comment would become the help of the command that flattens this.
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, Args)]
pub struct ListArgs {
    /// One line of JSON, with exact numbers; all columns unless -o is given
    #[arg(short = 'J', long)]
    pub json: bool,
    /// Leave out the headings
    #[arg(short = 'n', long)]
    pub no_headings: bool,
    /// Columns, separated by commas; +COLS adds to those shown by default
    #[arg(short = 'o', long, value_name = "COLS")]
    pub output: Option<String>,
    /// List the columns and their meaning
    #[arg(short = 'H', long)]
    pub list_columns: bool,
    /// Sort by these columns, such as SIZE:desc,UID
    #[arg(long, value_name = "COL[:desc],...")]
    pub sort: Option<String>,
    /// Only matching records, such as 'SIZE >= 64KiB and NAME =~ rank'
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
}

const LIST_HELP: &str = "\
A column is named by its heading, in any case, or by its key in JSON (-H shows both).

Filters compare a column with a value; `and`, `or` and parentheses join comparisons, and `and` binds closer.
  == != < <= > >=   as usual; for flags and words only == and !=
  =~                the text contains this
  sizes             whole numbers with KiB, MiB, GiB, TiB or PiB, as `8 GiB`, `8GiB` or `8Gi`; with K, M, G, T or P
                    of 1000; bytes without a unit
  times             whole numbers with ms, s, m or min, h or d; seconds without a unit
  flags             yes, no
  words             as the column has them, such as STATE == held
  none              no value, such as the pid of an owner that is gone
Text with blanks or one of ()=!<>~ needs quotation marks: '...' or \"...\".

On a terminal, without -o, the columns are shown that fit, and without --sort the largest comes first. Elsewhere all columns of the
default are there, whole, and the list is printed page by page, in the broker's order. In an order at most 262144 records
are printed, the first ones; stderr says how many are left out.
";

/// The help of a list: the common part, then the list's own examples.
pub fn after_help(examples: &str) -> String {
    format!("{LIST_HELP}\n{examples}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_when_it_names_the_bound_then_the_real_one() {
        assert!(LIST_HELP.contains(&super::super::sort::SORTED_RECORDS.to_string()));
    }
}
