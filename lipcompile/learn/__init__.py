"""Private models of tables: ranges, moments and a linear head on public features, each paid from one budget.

`fitting` is the whole: rows in, a `Fitted` model out. `scaling` releases ranges and moments, `features` maps rows
by public constants, `head` trains, `recipe` chooses settings from public facts alone. The room both compiles and
trains, so it is the one place that imports compiler and backend. Nothing here reads files, and no private
statistic leaves it but through `PrivacyEngine`.

Imports: lipcompile.core, lipcompile.frontends, lipcompile.pipeline, lipcompile.tables, lipcompile_privacy,
    lipcompile_torch.
"""
