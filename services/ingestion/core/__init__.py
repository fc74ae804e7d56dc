"""Pure decisions of ingestion: values in, values out."""
