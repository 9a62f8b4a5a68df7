"""A page that shows DFlash at work: drafted tokens, what the target kept of them, and what it gained.

The browser's side is ``dflash_demo.view``; everything else decides what is sent to it.
"""
