"""One frozen report model, and its renderings as text and JSON."""
