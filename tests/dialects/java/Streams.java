import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.LogAndContinueExceptionHandler;
import org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.Record;

/** A topology with one step, with the dead letter topic of KIP-1034. */
final class Streams {
    public static void main(String[] arguments) throws Exception {
        String source = arguments[1];
        var builder = new StreamsBuilder();
        var orders = Serdes.serdeFrom(new ByteArraySerializer(), new Orders.Reader());
        builder.stream(source, Consumed.with(Serdes.ByteArray(), orders)).process(Step::new);
        var streams = new KafkaStreams(builder.build(), config(arguments));
        streams.start();
        Orders.waitForEndOfInput();
        Runtime.getRuntime().halt(0);
    }

    private static final class Step implements Processor<byte[], byte[], Void, Void> {
        @Override
        public void process(Record<byte[], byte[]> order) {
            Orders.check("work", order.value(), order.headers());
        }
    }

    private static Properties config(String[] arguments) {
        var properties = new Properties();
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        properties.put(StreamsConfig.ERRORS_DEAD_LETTER_QUEUE_TOPIC_NAME_CONFIG, arguments[2]);
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[3]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        properties.put(StreamsConfig.DESERIALIZATION_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueExceptionHandler.class);
        properties.put(StreamsConfig.PROCESSING_EXCEPTION_HANDLER_CLASS_CONFIG,
                LogAndContinueProcessingExceptionHandler.class);
        properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.ISOLATION_LEVEL_CONFIG), "read_committed");
        return properties;
    }
}
