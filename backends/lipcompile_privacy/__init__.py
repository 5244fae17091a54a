"""The numbers of differentially private training: nothing here needs torch or the compiler.

==================  =======================================================================================
`accounting`        ε at δ of composed releases, and the noise or the steps that a budget allows
`factorisation`     strategies of correlated noise, their certified sensitivity, their optimisers
`planning`          what a budget buys: steps and noise of a run, how it is correlated, and what is left later
`ledger`            what a ledger says: its lines, what they add up to, and the generators that it names
`guesses`           what guesses about canaries say of a claimed ε
`errors`            what a private training refuses
==================  =======================================================================================

Imports go one way: `lipcompile_torch` and the command line import this package, which imports neither. The one
exception is `Strategy.stream`, which makes torch's noise and imports it when it is called.
"""
