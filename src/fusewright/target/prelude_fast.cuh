// What is made of both the others: accumulators with the special-function unit's own functions.

//: section FastLogSumExp needs LogSumExp exp_fast
using FastLogSumExp = LogSumExpBy<exp_fast>;
