//! Tables as people and programs write them.

use super::*;
use polars::prelude::*;
use std::fs::File;

fn csv(text: &str, columns: &TableColumns) -> Result<ForeignTable, TableError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("costs.csv");
    std::fs::write(&path, text).unwrap();
    from_table(&path, columns)
}

fn table(text: &str) -> CostTable {
    csv(text, &TableColumns::default()).unwrap().table
}

fn refused(text: &str) -> String {
    csv(text, &TableColumns::default()).unwrap_err().to_string()
}

fn features(names: &str) -> TableColumns {
    TableColumns { features: vec![names.to_owned()], ..TableColumns::default() }
}

fn parquet(columns: Vec<Column>, named: &TableColumns) -> Result<ForeignTable, TableError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("costs.parquet");
    let mut frame = DataFrame::new(columns[0].len(), columns).unwrap();
    ParquetWriter::new(File::create(&path).unwrap()).finish(&mut frame).unwrap();
    from_table(&path, named)
}

#[test]
fn whole_numbers_are_features_and_the_rest_candidates() {
    let table = table("rows,kv_len,a,b\n1,64,1.5,\n2,128,,2.5\n");
    assert_eq!(table.features(), ["rows", "kv_len"]);
    assert_eq!(table.candidates(), ["a", "b"]);
    assert_eq!(table.rows()[0].costs, [Some(1.5), None]);
    assert_eq!(table.rows()[1].features, [2, 128]);
}

#[test]
fn whole_costs_are_told_apart_by_name() {
    let text = "rows,fast,slow,weight,family\n1,10,20,2,7\n2,30,20,1,7\n";
    let columns = TableColumns {
        weight: Some("weight".to_owned()),
        group: Some("family".to_owned()),
        ..features("rows")
    };
    let table = csv(text, &columns).unwrap().table;
    assert_eq!(table.candidates(), ["fast", "slow"]);
    assert_eq!((table.rows()[0].weight, table.rows()[0].group), (2.0, table.rows()[1].group));
    let by_candidates = TableColumns {
        candidates: vec!["fast,slow".to_owned()],
        ignore: vec!["weight".to_owned(), "family".to_owned()],
        ..TableColumns::default()
    };
    assert_eq!(csv(text, &by_candidates).unwrap().table.features(), ["rows"]);
}

#[test]
fn columns_named_like_tiles_are_candidates() {
    assert_eq!(table("rows,m4n64w1s1\n1,10\n2,20\n").candidates(), ["m4n64w1s1"]);
}

#[test]
fn columns_in_doubt_are_asked_about() {
    let doubts = [
        // All whole; a whole candidate behind another; one that is called like another; a fractional feature.
        ("rows,fast,slow\n1,10,20\n2,30,20\n", "all columns are of whole numbers"),
        ("rows,a,b\n1,1.5,2\n2,2.5,3\n", "`b` has whole numbers only"),
        ("rows,c0,c1,c2\n1,2,1.5,1.1\n2,3,1.5,1.2\n", "`c0` has whole numbers only"),
        ("rows,a,b\n1,2,1.5\n2,3,2.5\n", "`b` would be the only candidate"),
        ("ratio,rows,a,b\n0.5,1,1.5,1.1\n0.25,2,1.5,1.2\n", "stands behind `ratio`"),
        ("ratio,a,b\n0.5,1.5,1.1\n0.25,1.5,1.2\n", "no column is of whole numbers"),
    ];
    for (text, doubt) in doubts {
        let error = refused(text);
        assert!(
            error.contains(doubt) && error.contains("--features a,b") && error.contains("--candidates c,d"),
            "{error}"
        );
    }
    let fractional = csv("ratio,a,b\n0.5,1.5,1.1\n", &features("ratio")).unwrap_err().to_string();
    assert!(fractional.contains("line 2") && fractional.contains("0.5 is none"), "{fractional}");
    let both = TableColumns { weight: Some("rows".to_owned()), ..features("rows") };
    let both = csv("rows,a,b\n1,1.5,2.5\n", &both).unwrap_err().to_string();
    assert!(both.contains("both a feature and the weight"), "{both}");
    let neither = TableColumns { candidates: vec!["a".to_owned()], ..features("rows") };
    let neither = csv("rows,a,b\n1,1.5,2.5\n", &neither).unwrap_err().to_string();
    assert!(neither.contains("b neither a feature nor a candidate"), "{neither}");
}

#[test]
fn rows_without_a_valid_candidate_are_left_out_and_counted() {
    let read = csv("rows,a,b\n1,1.5,2.0\n2,,nan\n3,NA,inf\n4,,1.0\n", &TableColumns::default()).unwrap();
    assert_eq!((read.left_out, read.first_left_out.as_deref()), (2, Some("line 3")));
    let rows: Vec<u64> = read.table.rows().iter().map(|row| row.features[0]).collect();
    assert_eq!(rows, [1, 4]);
}

#[test]
fn what_is_no_number_means_what_its_writer_meant() {
    let table = table(
        "rows,a,b\n1,nan,1.0\n2,NA,1.0\n3,inf,1.0\n4,,1.0\n5,NaN,1e3\n6,N/A,1\n7, None ,\" 2.5\"\n8,null,+2\n9,2.5,Infinity\n",
    );
    assert!(table.rows()[..8].iter().all(|row| row.costs[0].is_none() && row.costs[1].is_some()));
    assert_eq!(table.rows()[8].costs, [Some(2.5), None]);
    for (bad, why) in [
        ("0", "0 is no cost"),
        ("-1.5", "-1.5 is no cost"),
        ("-inf", "-inf is no cost"),
        ("fast", "`fast` is no number"),
    ] {
        let error = refused(&format!("rows,a,b\n1,1.5,2.0\n2,{bad},2.5\n"));
        assert!(error.contains("line 3, column `a`") && error.contains(why), "{error}");
    }
}

#[test]
fn whole_numbers_of_any_width_are_features() {
    let text = format!("rows,a,b\n{},1.5,1.0\n9223372036854775808,1.5,1.0\n0,1.0,1.5\n", u64::MAX);
    let values: Vec<u64> = table(&text).rows().iter().map(|row| row.features[0]).collect();
    assert_eq!(values, [u64::MAX, 1 << 63, 0]);
    let beyond = refused("rows,a,b\n18446744073709551616,1.5,1.0\n");
    assert!(beyond.contains("line 2") && beyond.contains("above 18446744073709551615"), "{beyond}");
    let negative = refused("rows,a,b\n-1,1.5,1.0\n");
    assert!(negative.contains("line 2, column `rows`") && negative.contains("below 0"), "{negative}");
}

#[test]
fn names_are_as_their_writer_wrote_them() {
    let text = "\"rows, all\",\"a \"\"quick\"\" one\",b\r\n1,1.5,2.5\r\n2,2.5,1.5\r\n";
    let table = csv(text, &features("\"rows, all\"")).unwrap().table;
    assert_eq!(table.features(), ["rows, all"]);
    assert_eq!(table.candidates(), ["a \"quick\" one", "b"]);
    let twice = refused("rows,a,a\n1,1.5,2.5\n");
    assert!(twice.contains("two columns are called `a`"), "{twice}");
    let unnamed = refused(",rows,a,b\n0,1,1.5,2.5\n");
    assert!(unnamed.contains("column 1 has no name"), "{unnamed}");
}

#[test]
fn errors_name_the_file_the_line_and_the_column() {
    let missing = csv("rows,a,b\n1,1.5,1.0\n", &features("cols")).unwrap_err().to_string();
    assert!(
        missing.contains("costs.csv") && missing.contains("`cols`") && missing.contains("rows, a, b"),
        "{missing}"
    );
    let ragged = refused("rows,a,b\n1,1.5,1.0\n2,1.5\n");
    assert!(ragged.contains("line 3: it has 2 cells, the header has 3"), "{ragged}");
    // A quoted line break makes two lines of one row.
    let quoted = refused("rows,a,b\n\"1\n\",1.5,1.0\n2,0,1.0\n");
    assert!(quoted.contains("line 4, column `a`"), "{quoted}");
    let weight = TableColumns { weight: Some("w".to_owned()), ..features("rows") };
    let weight = csv("rows,a,b,w\n1,1.5,1.0,1\n2,1.5,1.0,\n", &weight).unwrap_err().to_string();
    assert!(weight.contains("line 3, column `w`"), "{weight}");
    assert!(matches!(
        from_table(Path::new("x.txt"), &TableColumns::default()),
        Err(TableError::Extension { .. })
    ));
    assert!(matches!(from_table(Path::new("x.csv"), &TableColumns::default()), Err(TableError::Io { .. })));
}

#[test]
fn foreign_parquet_is_read_too() {
    let columns = vec![
        Column::new("i8".into(), [1i8, 2]),
        Column::new("u8".into(), [200u8, 255]),
        Column::new("i16".into(), [1i16, 2]),
        Column::new("u16".into(), [60_000u16, 2]),
        Column::new("i32".into(), [1i32, 2]),
        Column::new("u32".into(), [u32::MAX, 2]),
        Column::new("u64".into(), [u64::MAX, 1 << 63]),
        Column::new("a".into(), [Some(1.0), None]),
        Column::new("b".into(), [2.0f32, f32::NAN]),
        Column::new("c".into(), [3.0, 4.0]),
    ];
    let table = parquet(columns, &TableColumns::default()).unwrap().table;
    assert_eq!(table.rows()[0].features, [1, 200, 1, 60_000, 1, u64::from(u32::MAX), u64::MAX]);
    assert_eq!(table.rows()[1].costs, [None, None, Some(4.0)]);
    let bad = vec![
        Column::new("x".into(), [1i64, 2]),
        Column::new("a".into(), [1.0, -1.0]),
        Column::new("b".into(), [1.0, 2.0]),
    ];
    let error = parquet(bad, &TableColumns::default()).unwrap_err().to_string();
    assert!(error.contains("row 2, column `a`"), "{error}");
    let text = vec![
        Column::new("x".into(), [1i64, 2]),
        Column::new("a".into(), ["p", "q"]),
        Column::new("b".into(), [1.0, 2.0]),
    ];
    let error = parquet(text, &TableColumns::default()).unwrap_err().to_string();
    assert!(error.contains("column `a`") && error.contains("must be a number"), "{error}");
}

#[test]
fn damaged_parquet_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("costs.parquet");
    let columns = vec![Column::new("x".into(), [1u32, 2]), Column::new("a".into(), [1.0, 2.0])];
    let mut frame = DataFrame::new(2, columns).unwrap();
    ParquetWriter::new(File::create(&path).unwrap()).finish(&mut frame).unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(from_table(&path, &TableColumns::default()), Err(TableError::Unreadable { .. })));
}
