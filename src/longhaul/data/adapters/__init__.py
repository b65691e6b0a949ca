"""From the records of a file to the documents that a person would read: threads, questions, mail,
pages. An adapter knows the shape of its records and nothing of what a good text is: that is for
`clean/`. Text is chosen, cut and joined by empty lines; no word is added.
"""
