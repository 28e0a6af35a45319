"""Why a step came out as it did: Verification → what a person or a program reads.

`data.py` gathers the numbers, `names.py` the tokens' texts, `layout.py` arranges them with rich, `forms.py` makes
text, JSON, HTML, SVG or Markdown of them. No decision is made again here: verdicts, tokens and the interval that s
fell into are the Verification's.
"""
