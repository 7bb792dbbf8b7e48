"""Reports: the document, the HTML page, the figures and the text on the terminal."""
