"""
A small record shop.

A file of orders goes in, one task per row: validated, priced, written with its customer, charged to the customer's
account, paid at a gateway that sometimes fails, and receipted by mail. Broken rows end as dead letters with their reason.
Stock, sales figures, greetings and an audit hear of an order by events, each by itself.
Nothing is lost and no order is written twice, whichever worker dies when: `shop/closing.py` adds it up.
"""
