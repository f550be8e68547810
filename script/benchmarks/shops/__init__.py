"""The same shop with each tool that ``script/bench outbox`` compares: an order is paid, and an invoice is written for it.

Each shop is an app with a module ``shop``: ``pay`` and ``pay_many`` make facts beside a business row, ``handle`` writes
invoices until its process is ended. All have the business row and the effect of ``goods``. The tools' own code is imported
only in processes of their shop, which run in an environment that has the tool.
"""
