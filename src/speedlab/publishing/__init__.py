"""From records to pages: tables, figures, diagrams, the batch run and the book. Nothing here imports torch."""
